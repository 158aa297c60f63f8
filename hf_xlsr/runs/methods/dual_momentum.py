"""Dual momentum contrast in recipes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, model_validator

from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.sources import as_list, parse_sources
from hf_xlsr.data.training_rows import clean_inference
from hf_xlsr.encoders.assembly import SentenceEncoder
from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.modeling.dual_momentum import DualMomentumConfig, DualMomentumModel
from hf_xlsr.modeling.dual_momentum.configuration_dual_momentum import SHARED
from hf_xlsr.modeling.heads import NLI_LABELS
from hf_xlsr.runs.methods.base import DROPOUT, TrainingData
from hf_xlsr.runs.methods.sentence_encoder import NliSection, SentenceEncoderMethod, SentenceEncoderRecipe
from hf_xlsr.runs.sections import section_of
from hf_xlsr.trainers.arguments import DualMomentumTrainingArguments
from hf_xlsr.trainers.dual_momentum import DualMomentumTrainer
from hf_xlsr.utils.variables import expand

ENCODERS = (
    dict[str, str] | None,
    Field(
        None,
        description=f"folder or id of a pretrained encoder for each language, or one as `{SHARED}`; variables "
        "HF_XLSR_* are expanded",
    ),
)


class DualMomentumRecipe(SentenceEncoderRecipe):
    method: Literal["dual_momentum"]
    nli: NliSection = NliSection()

    @model_validator(mode="after")
    def _check_encoders(self) -> DualMomentumRecipe:
        encoders = self.model.get("encoders") or {}
        if self.languages and encoders and set(encoders) not in ({SHARED}, set(self.languages)):
            raise ValueError(
                f"model.encoders names {', '.join(encoders)}; name an encoder for each of "
                f"{', '.join(self.languages)}, or one as '{SHARED}'"
            )
        return self


class DualMomentumMethod(SentenceEncoderMethod):
    """`method: dual_momentum`. `model.encoders` names a pretrained encoder for each language, or one as `shared`."""

    name = "dual_momentum"
    recipe_class = DualMomentumRecipe
    model_section = section_of(
        DualMomentumConfig, without=("languages", "encoder_configs", "nli_labels"), dropout=DROPOUT, encoders=ENCODERS
    )
    config_class = DualMomentumConfig
    arguments_class = DualMomentumTrainingArguments
    trainer_class = DualMomentumTrainer

    recipe: DualMomentumRecipe

    @classmethod
    def nested_keys(cls, content: Mapping[str, Any]) -> list[str]:
        return [f"model.encoders.{name}" for name in (*as_list(content.get("languages")), SHARED)]

    @classmethod
    def encoder_keys(cls, encoders: Mapping[str, str]) -> dict[str, Any]:
        return {"encoders": {name or SHARED: path for name, path in encoders.items()}}

    @property
    def config_options(self) -> dict[str, Any]:
        return {"languages": list(self.recipe.languages), **super().config_options}

    @property
    def paths(self) -> dict[str, str]:
        return {name: expand(path) for name, path in self.recipe.model["encoders"].items()}

    def read_given(self) -> SentenceEncoder:
        paths = self.paths
        return read_encoder(paths.get(SHARED, paths), "model.encoders")

    def read_data(self, evaluation_texts: SeenHashes) -> TrainingData:
        rows = {"": self.clean_pairs(evaluation_texts)}
        inference_sources = parse_sources(self.recipe.nli.train)
        if inference_sources:
            rows["nli"] = clean_inference(inference_sources, crossed=False, **self.reading(evaluation_texts))
        return TrainingData(rows, self.tokenizers)

    @cached_property
    def tokenizers(self) -> dict[str, Any]:
        """The tokenizer of each language."""
        encoders = self.read_given().parts
        return {language: (encoders.get(language) or encoders[""]).tokenizer for language in self.recipe.languages}

    def build_model(self, data: TrainingData) -> Any:
        with self.explained("model"):
            model = DualMomentumModel.from_encoders(
                self.read_given(),
                nli_labels=NLI_LABELS if "nli" in data.rows else 0,
                dropout=self.recipe.model.get("dropout"),
                **self.config_options,
            )
        return self.initialize(model)

    def trainer_options(self, data: TrainingData) -> dict[str, Any]:
        return {
            "tokenizers": data.tokenizer,
            "train_dataset": data.dataset(""),
            "nli_dataset": data.dataset("nli"),
        }

    def routes(self) -> tuple[str, ...]:
        if SHARED in self.recipe.model["encoders"]:
            return ()
        return tuple(self.recipe.languages)
