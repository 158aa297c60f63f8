"""CMLM in recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from hf_xlsr.data.labelled import prepare_nli
from hf_xlsr.data.masking import MaskDrawer
from hf_xlsr.data.pairs import PreparedData, prepare
from hf_xlsr.data.running_text import prepare_running_text
from hf_xlsr.data.sources import as_list
from hf_xlsr.modeling import citations
from hf_xlsr.modeling.cmlm import CmlmConfig, CmlmModel
from hf_xlsr.runs.methods.base import DROPOUT
from hf_xlsr.runs.methods.sentence_encoder import (
    ENCODER,
    NLI_LABELS,
    FramedTokenizerSection,
    NliSection,
    OneEncoderMethod,
    OneEncoderRecipe,
    SentenceDataSection,
)
from hf_xlsr.runs.sections import Sources, section_of
from hf_xlsr.trainers.arguments import CmlmTrainingArguments
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.cmlm import CmlmTrainer
from hf_xlsr.utils.errors import XlsrError


class CmlmData(SentenceDataSection):
    text: Sources = Field(None, description="running text: sentences in the order of their documents")


class CmlmRecipe(OneEncoderRecipe):
    method: Literal["cmlm"]
    data: CmlmData = CmlmData()
    nli: NliSection = NliSection()
    tokenizer: FramedTokenizerSection = FramedTokenizerSection()


class CmlmMethod(OneEncoderMethod):
    """`method: cmlm`. `model.encoder` describes the encoder, or names a pretrained one by `path`.

    `data.text` holds running text, `data.train` translation pairs, `nli.train` inference. A task takes part if it has
    data and `model` gives it a weight, so that stages may share their data and differ in weights.
    """

    name = "cmlm"
    paper = (
        "*Universal Sentence Representation Learning with Conditional Masked Language Model* (Yang et al., EMNLP 2021)"
    )
    citation = citations.CMLM
    recipe_class = CmlmRecipe
    model_section = section_of(CmlmConfig, without=("nli_labels",), dropout=DROPOUT, encoder=ENCODER)
    config_class = CmlmConfig
    model_class = CmlmModel
    arguments_class = CmlmTrainingArguments
    trainer_class = CmlmTrainer

    recipe: CmlmRecipe

    @property
    def active(self) -> dict[str, list[Any]]:
        """The sources of the tasks that have both data and a weight."""
        found = {
            "text": (self.config.cmlm_weight, self.recipe.data.text),
            "pairs": (self.config.retrieval_weight, self.recipe.data.train),
            "nli": (self.config.nli_weight, self.recipe.nli.train),
        }
        active = {task: as_list(sources) for task, (weight, sources) in found.items() if weight and as_list(sources)}
        if not active:
            raise XlsrError(
                f"recipe '{self.recipe.name}' has no data of a task with a weight: text, train or nli.train."
            )
        return active

    def check(self, arguments: Any, sets: Mapping[str, Any]) -> None:
        super().check(arguments, sets)
        if "text" in self.active:
            self.check_tokenizer(MaskDrawer)

    def prepare(self, folder: Path, evaluation_texts: Iterator[str]) -> PreparedData:
        recipe, active = self.recipe, self.active
        common = {"max_length": self.max_length, **self.reading(evaluation_texts)}
        prepared = PreparedData(None, self.given_tokenizer(), {"pairs": 0})
        if "text" in active:
            prepared.train = prepare_running_text(
                active["text"],
                tokenizers=prepared.tokenizer or recipe.tokenizer.model_dump(),
                folder=folder / "text",
                cleaning=recipe.data.cleaning,
                **common,
            )
            prepared.tokenizer = prepared.train.tokenizer
            prepared.report["text"] = prepared.train.report
        if "pairs" in active:
            tokenizer = prepared.tokenizer or recipe.tokenizer.model_dump()
            pairs = prepare(data=recipe.data.model_dump(), tokenizer=tokenizer, folder=folder / "pairs", **common)
            prepared.pairs, prepared.tokenizer = pairs.train, pairs.tokenizer
            prepared.report |= pairs.report
        if "nli" in active:
            if prepared.tokenizer is None:
                raise XlsrError(f"recipe '{recipe.name}' has no text to train a tokenizer on; set tokenizer.path.")
            prepared.nli = prepare_nli(active["nli"], tokenizers=prepared.tokenizer, folder=folder / "nli", **common)
            prepared.report["nli"] = prepared.nli.report
        prepared.report["vocab_size"] = len(prepared.tokenizer)
        return prepared

    def build_model(self, data: PreparedData) -> Any:
        labels = NLI_LABELS if data.nli is not None else 0
        text_config = self.encoder_config(data.tokenizer)
        return self.initialize(self.model_on_encoder(self.model_class, text_config, nli_labels=labels))

    def room(self, positions: int) -> int:
        return self.config.room(positions) if "text" in self.active else positions

    def trainer_options(self, data: PreparedData) -> dict[str, Any]:
        return {"processing_class": data.tokenizer, "retrieval_dataset": data.pairs, "nli_dataset": data.nli}

    @property
    def exported(self) -> bool:
        return self.recipe.model.get("sentence_vector") != "projected"  # which has no stock module

    @property
    def pretrained(self) -> bool:
        return super().pretrained and self.exported

    def export(self, trainer: XlsrTrainer, path: Path) -> Any:
        return super().export(trainer, path) if self.exported else trainer.live_encoder()
