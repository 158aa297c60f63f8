// Prints, as JSON, the embeddings of transformers.js: by the pipeline, and as `sentence_embedding` of the model.
// node transformers_js.mjs FOLDER_OF_MODELS MODEL DTYPE TEXT...
import { AutoModel, AutoTokenizer, env, pipeline } from "@huggingface/transformers";

const [folder, name, dtype, ...texts] = process.argv.slice(2);
env.allowRemoteModels = false;
env.localModelPath = folder;
const extractor = await pipeline("feature-extraction", name, { dtype });
const tokenizer = await AutoTokenizer.from_pretrained(name);
const model = await AutoModel.from_pretrained(name, { dtype });
const output = await model(await tokenizer(texts, { padding: true, truncation: true }));
console.log(JSON.stringify({
  pipeline: (await extractor(texts, { pooling: "mean", normalize: true })).tolist(),
  direct: output.sentence_embedding.tolist(),
}));
