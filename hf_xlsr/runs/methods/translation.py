"""Fine-tuning on translation in recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator
from rich.console import Console
from transformers import GenerationConfig

from hf_xlsr.data.pairs import PreparedData, load_tokenizer, prepare
from hf_xlsr.data.sources import as_list, open_source, source_name
from hf_xlsr.data.tokenization import trim_vocabulary
from hf_xlsr.evaluation.bleu import bleu_rows, check_tokenizer, default_tokenizer
from hf_xlsr.evaluation.report import results_table
from hf_xlsr.evaluation.results import Results
from hf_xlsr.export.card import public_path
from hf_xlsr.modeling.hictl.configuration_hictl import HictlConfig
from hf_xlsr.modeling.hictl.modeling_generation import HictlForConditionalGeneration, sentence_ends
from hf_xlsr.runs.fields import section_of
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.methods.base import DROPOUT, Evaluations, Finished
from hf_xlsr.runs.methods.fine_tuning import START, FineTuningMethod, FineTuningRecipe
from hf_xlsr.runs.methods.sentence_encoder import evaluation_sets, evaluation_texts
from hf_xlsr.runs.sections import DataSection, Sources
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.translation import LiveTranslator, TranslationTrainer, TranslationTrainingArguments
from hf_xlsr.utils.files import write_text
from hf_xlsr.utils.hashing import data_hash
from hf_xlsr.utils.validation import Section

RANDOM = (bool, Field(False, description="new weights in the shape of `start`: the Transformer of table 4"))
MODEL_KEYS = ("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim", "word_similarity", "logits_chunk_size")


class TranslationData(DataSection):
    # NFKC would replace full-width punctuation of the targets, which no reference has.
    cleaning: list[Any] | dict[str, Any] | None = Field(
        [{"normalize": {"form": "NFC"}}, "deduplicate"], description="steps, by name or as `{name: options}`"
    )
    max_length: int = Field(128, ge=1, description="sentences are truncated to this many tokens")


class VocabularySection(Section):
    sources: Sources = Field(None, description="text to whose tokens the vocabulary is reduced")


class TranslationEvaluation(Section):
    name: str | None = Field(None, description="name of the sets in metric keys; by default that of their source")
    tokenize: str | list[str] | None = Field(
        None, description="tokenizers of sacrebleu; by default those of the target language"
    )
    num_beams: int = Field(5, ge=1, description="beams on the test set")
    length_penalty: float = Field(1.0, description="above 0 it favours long translations")
    num_beams_in_training: int = Field(1, ge=1, description="beams on the dev set during training")
    batch_size: int = Field(32, ge=1, description="sentences decoded together")
    shown: int = Field(3, ge=0, description="test translations to print")


class TranslationRecipe(FineTuningRecipe):
    method: Literal["translation"]
    data: TranslationData = TranslationData()
    vocabulary: VocabularySection = VocabularySection()
    evaluation: TranslationEvaluation = TranslationEvaluation()

    @model_validator(mode="after")
    def _check_tokenizers(self) -> TranslationRecipe:
        for tokenizer in as_list(self.evaluation.tokenize):
            check_tokenizer(tokenizer)
        return self


class TranslationMethod(FineTuningMethod):
    """`method: translation`. `model.start` names an encoder, a HICTL model or a run; pairs go from source to target.

    `vocabulary.sources` reduces the vocabulary to the tokens of some text (see `trim_vocabulary`); consecutive stages
    must reduce it alike. `evaluation` says how the test set is decoded; during training, decoding uses
    `num_beams_in_training` beams.
    """

    name = "translation"
    recipe_class = TranslationRecipe
    model_section = section_of(HictlConfig, only=MODEL_KEYS, start=START, dropout=DROPOUT, random_weights=RANDOM)
    arguments_class = TranslationTrainingArguments
    trainer_class = TranslationTrainer
    card_tags = ("translation", "cross-lingual")
    pipeline_tag = "translation"

    recipe: TranslationRecipe

    def evaluation_sets(self) -> dict[str, list[dict[str, Any]]]:
        sets = evaluation_sets(self.recipe)
        if not self.recipe.evaluation.tokenize:
            for language in sorted({row["target_lang"] for rows in sets.values() for row in rows}):
                check_tokenizer(default_tokenizer(language))  # before the training, as it may need a package
        return sets

    def evaluation_texts(self, sets: Mapping[str, Any]) -> Iterator[str]:
        return evaluation_texts(sets)

    def _scoring(self, split: str) -> dict[str, Any]:
        evaluation = self.recipe.evaluation
        return {
            "name": evaluation.name or source_name(as_list(getattr(self.recipe.data, split))[0]),
            "split": split,
            "tokenize": as_list(evaluation.tokenize) or None,
            "batch_size": evaluation.batch_size,
            "length_penalty": evaluation.length_penalty,
            "num_beams": evaluation.num_beams if split == "test" else evaluation.num_beams_in_training,
        }

    def evaluations(self, sets: Mapping[str, Any]) -> Evaluations:
        return [partial(bleu_rows, rows=sets["dev"], **self._scoring("dev"))] if sets["dev"] else []

    def prepare(self, folder: Path, evaluation_texts: Iterator[str]) -> PreparedData:
        data, tokenizer = self.recipe.data.model_dump(), {"path": str(self._tokenizer_folder(folder))}
        return prepare(data=data, tokenizer=tokenizer, folder=folder, **self.reading(evaluation_texts))

    def _tokenizer_folder(self, folder: Path) -> str | Path:
        """Where the tokenizer is: with the encoder, or in the run's folder if the vocabulary is reduced."""
        recipe, reduced = self.recipe, folder / "vocabulary"
        whole = load_tokenizer(self.start, "model.start")
        sentence_ends(whole)  # fails before hours of reading
        if not (sources := as_list(recipe.vocabulary.sources)):
            return self.start
        if not reduced.is_dir():
            texts = (
                row[side]
                for source in sources
                for row in open_source(source, languages=recipe.languages, split="train", seed=recipe.seed)
                for side in ("source", "target")
            )
            partial_folder = folder / "vocabulary.partial"
            trim_vocabulary(whole, texts)[0].save_pretrained(str(partial_folder))
            partial_folder.rename(reduced)
        return reduced

    def build_model(self, data: PreparedData) -> Any:
        tokenizer, kept = data.tokenizer, None
        if as_list(self.recipe.vocabulary.sources):
            names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
            kept = load_tokenizer(self.start, "model.start").convert_tokens_to_ids(names)
        return self.from_encoder(HictlForConditionalGeneration, tokenizer=tokenizer, tokens=kept)

    def evaluate_and_export(
        self, folder: RunFolder, trainer: XlsrTrainer, data: PreparedData, sets: Mapping[str, Any], console: Console
    ) -> Finished:
        # Users of the folder decode as the recipe does by default.
        decoding = self.recipe.evaluation.model_dump(include={"num_beams", "length_penalty"})
        config = trainer.accelerator.unwrap_model(trainer.model).generation_config
        ends = {key: getattr(config, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        generation = GenerationConfig(**ends, **decoding, max_length=self.recipe.data.max_length)
        model, test = self.save(folder, trainer, data.tokenizer, generation_config=generation), sets["test"]
        finished = Finished(Results(), [], {}, model.config.hidden_size)
        if test:
            translator = LiveTranslator(model, data.tokenizer, **self.live_options(trainer))
            signatures: dict[str, str] = {}
            translations: list[str] = []
            scoring = self._scoring("test")
            finished.metrics = bleu_rows(translator, test, signatures=signatures, translations=translations, **scoring)
            console.print(results_table(finished.metrics, title=f"{self.recipe.name}: test"))
            for key, signature in signatures.items():
                console.print(f"{key}: {signature}", highlight=False)
            finished.data_hashes["test"] = data_hash(row[side] for row in test for side in ("source", "target"))
            data.report["bleu_signatures"] = signatures
            write_text(folder.training / "translations.txt", "".join(f"{text}\n" for text in translations))
            for row, text in islice(zip(test, translations, strict=True), self.recipe.evaluation.shown):
                for line in (row["source"], f"  {text}", f"  ({row['target']})"):
                    console.print(line, highlight=False, markup=False)
        return finished

    def card_facts(self, report: Mapping[str, Any]) -> dict[str, str]:
        pairs = ", ".join("-".join(pair) for pair in report["language_pairs"])
        signatures = "; ".join(report.get("bleu_signatures", {}).values())
        return {
            "start": public_path(self.recipe.model["start"]),
            "directions": pairs,
            "vocabulary": f"{report['vocab_size']:,} tokens",
            **({"BLEU": f"sacrebleu, {signatures}"} if signatures else {}),
        }

    def card_use(self) -> str:
        return (
            "from transformers import AutoTokenizer\n"
            "from hf_xlsr import HictlForConditionalGeneration\n\n"
            'folder = "path/to/this/folder"\n'
            "tokenizer = AutoTokenizer.from_pretrained(folder)\n"
            "model = HictlForConditionalGeneration.from_pretrained(folder).eval()\n"
            'batch = tokenizer(["A sentence."], return_tensors="pt", padding=True, return_token_type_ids=False)\n'
            "print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))"
        )
