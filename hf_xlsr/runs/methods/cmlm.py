"""CMLM in recipes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from hf_xlsr.data.masking import MaskDrawer
from hf_xlsr.data.preparation import CleanRows
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.sources import Source, parse_sources
from hf_xlsr.data.training_rows import clean_inference, clean_running_text
from hf_xlsr.modeling.cmlm import CmlmConfig, CmlmModel
from hf_xlsr.modeling.heads import NLI_LABELS
from hf_xlsr.runs.methods.base import DROPOUT, TrainingData
from hf_xlsr.runs.methods.sentence_encoder import (
    ENCODER,
    PAIR_COLUMNS,
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
    recipe_class = CmlmRecipe
    model_section = section_of(CmlmConfig, without=("nli_labels",), dropout=DROPOUT, encoder=ENCODER)
    config_class = CmlmConfig
    model_class = CmlmModel
    arguments_class = CmlmTrainingArguments
    trainer_class = CmlmTrainer

    recipe: CmlmRecipe

    @property
    def active(self) -> dict[str, list[Source]]:
        """The sources of the tasks that have both data and a weight."""
        active: dict[str, list[Source]] = {}
        if self.config.cmlm_weight and self.recipe.data.text:
            active["text"] = parse_sources(self.recipe.data.text)
        if self.config.retrieval_weight and self.recipe.data.train:
            active["pairs"] = parse_sources(self.recipe.data.train)
        if self.config.nli_weight and self.recipe.nli.train:
            active["nli"] = parse_sources(self.recipe.nli.train)

        if not active:
            raise XlsrError(
                f"recipe '{self.recipe.name}' has no data of a task with a weight: text, train or nli.train."
            )
        return active

    def check(self, arguments: Any, sets: Mapping[str, Any]) -> None:
        super().check(arguments, sets)
        if "text" in self.active:
            self.check_tokenizer(MaskDrawer)

    def read_data(self, evaluation_texts: SeenHashes) -> TrainingData:
        active = self.active
        reading = self.reading(evaluation_texts)

        rows: dict[str, CleanRows] = {}
        if "text" in active:
            rows["text"] = clean_running_text(active["text"], cleaning=self.recipe.data.cleaning, **reading)
        if "pairs" in active:
            rows[""] = self.clean_pairs(evaluation_texts)
        if "nli" in active:
            rows["nli"] = clean_inference(active["nli"], **reading)

        tokenizer = self.given_tokenizer
        if "text" in rows:
            tokenizer = self.tokenizer_for(rows["text"], [("text", "lang")])
        elif "" in rows:
            tokenizer = self.tokenizer_for(rows[""], PAIR_COLUMNS)
        if tokenizer is None:
            raise XlsrError(f"recipe '{self.recipe.name}' has no text to train a tokenizer on; set tokenizer.path.")
        return TrainingData(rows, tokenizer)

    def build_model(self, data: TrainingData) -> Any:
        labels = NLI_LABELS if "nli" in data.rows else 0
        return self.initialize(self.model_on_encoder(data.tokenizer, nli_labels=labels))

    def trainer_options(self, data: TrainingData) -> dict[str, Any]:
        return {
            "processing_class": data.tokenizer,
            "train_dataset": data.dataset("text"),
            "retrieval_dataset": data.dataset(""),
            "nli_dataset": data.dataset("nli"),
        }

    @property
    def exported(self) -> bool:
        return self.recipe.model.get("sentence_vector") != "projected"  # which has no stock module

    @property
    def pretrained(self) -> bool:
        return super().pretrained and self.exported

    def export(self, trainer: XlsrTrainer, path: Path) -> Any:
        if not self.exported:
            return trainer.live_encoder()
        return super().export(trainer, path)
