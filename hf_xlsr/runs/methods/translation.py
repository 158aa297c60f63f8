"""Fine-tuning on translation in recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from huggingface_hub.errors import StrictDataclassError
from rich.console import Console
from transformers import GenerationConfig

from hf_xlsr.data.prepare import PreparedData, load_tokenizer, prepare
from hf_xlsr.data.sources import as_list, expand, open_source, source_name
from hf_xlsr.data.tokenization import trim_vocabulary
from hf_xlsr.evaluation.bleu import bleu_rows, check_tokenizer, default_tokenizer
from hf_xlsr.evaluation.report import results_table
from hf_xlsr.export.card_values import public_path
from hf_xlsr.modeling.hictl.configuration_hictl import HictlConfig
from hf_xlsr.modeling.hictl.modeling_classification import encoder_folder
from hf_xlsr.modeling.hictl.modeling_generation import HictlForConditionalGeneration, sentence_ends
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.methods.base import ADAPTERS_SECTION, DROPOUT, START, Evaluations, Finished, Method, own_keys
from hf_xlsr.runs.methods.hictl import HICTL_CITATION, HICTL_PAPER
from hf_xlsr.runs.methods.sentence_encoder import evaluation_sets, evaluation_texts
from hf_xlsr.runs.recipe_keys import Key
from hf_xlsr.trainers.adapters import merged
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.translation import LiveTranslator, TranslationTrainer, TranslationTrainingArguments
from hf_xlsr.utils.errors import XlsrError, error_line
from hf_xlsr.utils.hashing import data_hash

MODEL_KEYS = (
    "decoder_layers",
    "decoder_attention_heads",
    "decoder_ffn_dim",
    "word_similarity",
    "logits_chunk_size",
)


class _OneWord:
    """Translates everything alike: what metrics there are, without a model."""

    def translate(self, sentences: Sequence[str], **_: Any) -> list[str]:
        return ["."] * len(sentences)


class TranslationMethod(Method):
    """`method: translation`. `model.start` names an encoder, a HICTL model or a run; pairs go from source to target.

    `vocabulary.sources` cuts the vocabulary to the pieces of some text (see `trim_vocabulary`); stages that follow each
    other have to cut it alike. `evaluation` says how the test set is decoded; while training goes on, beams are
    `num_beams_in_training` wide.
    """

    name = "translation"
    paper, citation = HICTL_PAPER, HICTL_CITATION
    config_class = HictlConfig
    arguments_class = TranslationTrainingArguments
    trainer_class = TranslationTrainer
    sections: ClassVar[dict[str, dict[str, Any]]] = {
        # NFKC would turn full-width punctuation of the targets into another that no reference has.
        "data": {"cleaning": [{"normalize": {"form": "NFC"}}, "deduplicate"], "max_length": 128},
        "vocabulary": {"sources": Key(None, "text to whose pieces the vocabulary is cut", ("source",))},
        "evaluation": {
            "name": Key(None, "what metric keys call the sets; the name of their source when absent", ("str",)),
            "tokenize": Key(
                None, "tokenizers of sacrebleu; what suits the target language when absent", ("str", "list")
            ),
            "num_beams": Key(5, "beams on the test set", least=1),
            "length_penalty": Key(1.0, "above 0 it favours long translations"),
            "num_beams_in_training": Key(1, "beams on the dev set while training goes on", least=1),
            "batch_size": Key(32, "sentences decoded together", least=1),
            "shown": Key(3, "test translations that are printed", least=0),
        },
        "adapters": ADAPTERS_SECTION,
    }
    card_tags = ("translation", "cross-lingual")
    pipeline_tag = "translation"

    def model_keys(self, recipe: Mapping[str, Any]) -> dict[str, dict[str, Key]]:
        own = own_keys(HictlConfig)
        return {"model": {"start": START, "dropout": DROPOUT, **{name: own[name] for name in MODEL_KEYS}}}

    def sources(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        return super().sources(recipe) | {"vocabulary.sources": (recipe.get("vocabulary") or {}).get("sources")}

    def validate(self, recipe: dict[str, Any]) -> None:
        if not isinstance(recipe["model"].get("start"), str):
            raise XlsrError(
                f"recipe '{recipe['name']}' has no model.start; name an encoder, a HICTL model or the folder of a run."
            )
        try:  # what can be said before data are prepared for it
            for tokenizer in as_list(recipe["evaluation"]["tokenize"]):
                check_tokenizer(tokenizer)
            HictlConfig(**{key: value for key, value in recipe["model"].items() if key in MODEL_KEYS})
        except (XlsrError, StrictDataclassError) as error:
            raise XlsrError(f"recipe '{recipe['name']}': {error_line(error)}") from None

    def evaluation_sets(self, recipe: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
        sets = evaluation_sets(recipe)
        if not recipe["evaluation"]["tokenize"]:
            for language in sorted({row["target_lang"] for rows in sets.values() for row in rows}):
                check_tokenizer(default_tokenizer(language))  # tells before the training what has to be installed
        return sets

    def evaluation_texts(self, recipe: Mapping[str, Any], sets: Mapping[str, Any]) -> Iterator[str]:
        return evaluation_texts(recipe, sets)

    @staticmethod
    def _scoring(recipe: Mapping[str, Any], split: str) -> dict[str, Any]:
        evaluation = recipe["evaluation"]
        return {
            "name": evaluation["name"] or source_name(as_list(recipe["data"][split])[0]),
            "split": split,
            "tokenize": as_list(evaluation["tokenize"]) or None,
            "batch_size": evaluation["batch_size"],
            "length_penalty": evaluation["length_penalty"],
            "num_beams": evaluation["num_beams" if split == "test" else "num_beams_in_training"],
        }

    def evaluations(self, recipe: Mapping[str, Any], sets: Mapping[str, Any]) -> Evaluations:
        return [partial(bleu_rows, rows=sets["dev"], **self._scoring(recipe, "dev"))] if sets["dev"] else []

    def metric_names(self, recipe: Mapping[str, Any], sets: Mapping[str, Any]) -> list[str]:
        return list(bleu_rows(_OneWord(), sets["dev"], **self._scoring(recipe, "dev")))

    @staticmethod
    def start(recipe: Mapping[str, Any]) -> str:
        """The folder or id of the encoder."""
        return encoder_folder(expand(recipe["model"]["start"]))

    def prepare(self, recipe: Mapping[str, Any], folder: Path, evaluation_texts: Iterator[str]) -> PreparedData:
        return prepare(
            data=recipe["data"],
            tokenizer={"path": str(self._tokenizer_folder(recipe, folder))},
            languages=recipe["languages"],
            evaluation_texts=evaluation_texts,
            folder=folder,
            seed=recipe["seed"],
        )

    def _tokenizer_folder(self, recipe: Mapping[str, Any], folder: Path) -> str | Path:
        """Where the tokenizer lies: with the encoder, or in the run's folder if the vocabulary is cut."""
        sources, cut = as_list(recipe["vocabulary"]["sources"]), folder / "vocabulary"
        whole = load_tokenizer(self.start(recipe), "model.start")
        sentence_ends(whole)  # tells before hours of reading that it will not do
        if not sources:
            return self.start(recipe)
        if not cut.is_dir():
            texts = (
                row[side]
                for source in sources
                for row in open_source(source, languages=recipe["languages"], split="train", seed=recipe["seed"])
                for side in ("source", "target")
            )
            partial_folder = folder / "vocabulary.partial"
            trim_vocabulary(whole, texts)[0].save_pretrained(str(partial_folder))
            partial_folder.rename(cut)
        return cut

    def build_model(self, recipe: Mapping[str, Any], data: PreparedData) -> Any:
        """The model that a recipe describes, on the vocabulary of its data; with adapters, in a PEFT wrapper.

        Raises:
            XlsrError: the encoder does not load, a value does not fit, or the weights of `start_from` do not.
        """
        options, tokenizer, pieces = dict(recipe["model"]), data.tokenizer, None
        if as_list(recipe["vocabulary"]["sources"]):
            names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
            pieces = load_tokenizer(self.start(recipe), "model.start").convert_tokens_to_ids(names)
        try:
            model = HictlForConditionalGeneration.from_encoder(
                expand(options.pop("start")), tokenizer=tokenizer, tokens=pieces, **options
            )
        except (TypeError, ValueError) as error:
            raise XlsrError(f"recipe '{recipe['name']}', model: {error_line(error)}") from None
        return self.initialize(recipe, model)

    def evaluate_and_export(
        self,
        recipe: Mapping[str, Any],
        folder: RunFolder,
        trainer: XlsrTrainer,
        data: PreparedData,
        sets: Mapping[str, Any],
        console: Console,
    ) -> Finished:
        model, test = merged(trainer.accelerator.unwrap_model(trainer.model)), sets["test"]
        # Users of the folder decode as the recipe does, unless they say otherwise.
        decoding = {key: recipe["evaluation"][key] for key in ("num_beams", "length_penalty")}
        limit = recipe["data"]["max_length"]
        ends = {key: getattr(model.generation_config, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        model.generation_config = GenerationConfig(**ends, **decoding, max_length=limit)
        model.save_pretrained(folder.model)
        data.tokenizer.save_pretrained(str(folder.model))
        finished = Finished({}, [], {}, model.config.hidden_size)
        if test:
            translator = LiveTranslator(
                HictlForConditionalGeneration.from_pretrained(folder.model).to(trainer.args.device),
                data.tokenizer,
                max_length=limit,
                autocast_dtype=trainer.autocast_dtype,
                progress=not trainer.args.disable_tqdm,
            )
            signatures: dict[str, str] = {}
            translations: list[str] = []
            scoring = self._scoring(recipe, "test")
            finished.metrics = bleu_rows(translator, test, signatures=signatures, translations=translations, **scoring)
            console.print(results_table(finished.metrics, title=f"{recipe['name']}: test"))
            for key, signature in signatures.items():
                console.print(f"{key}: {signature}", highlight=False)
            finished.data_hashes["test"] = data_hash(row[side] for row in test for side in ("source", "target"))
            data.report["bleu_signatures"] = signatures
            (folder.training / "translations.txt").write_text("".join(f"{text}\n" for text in translations), "utf-8")
            for row, text in islice(zip(test, translations, strict=True), recipe["evaluation"]["shown"]):
                for line in (row["source"], f"  {text}", f"  ({row['target']})"):
                    console.print(line, highlight=False, markup=False)
        return finished

    def card_facts(self, recipe: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, str]:
        pairs = ", ".join("-".join(pair) for pair in report["language_pairs"])
        signatures = "; ".join(report.get("bleu_signatures", {}).values())
        return {
            "start": public_path(recipe["model"]["start"]),
            "directions": pairs,
            "vocabulary": f"{report['vocab_size']:,} pieces",
            **({"BLEU": f"sacrebleu, {signatures}"} if signatures else {}),
        }

    def card_use(self, recipe: Mapping[str, Any]) -> str:
        return (
            "from transformers import AutoTokenizer\n"
            "from hf_xlsr import HictlForConditionalGeneration\n\n"
            'folder = "path/to/this/folder"\n'
            "tokenizer = AutoTokenizer.from_pretrained(folder)\n"
            "model = HictlForConditionalGeneration.from_pretrained(folder).eval()\n"
            'batch = tokenizer(["A sentence."], return_tensors="pt", padding=True, return_token_type_ids=False)\n'
            "print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))"
        )
