"""The lightweight dual transformer, and distillation, in recipes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import Field
from transformers import PreTrainedConfig

from hf_xlsr.data.masking import MaskDrawer
from hf_xlsr.encoders.stock import DROPOUTS, set_dropout
from hf_xlsr.encoders.teacher import Teacher
from hf_xlsr.evaluation.results import Results
from hf_xlsr.modeling.lightweight import (
    DistillationConfig,
    DistillationModel,
    LightweightConfig,
    LightweightDualTransformer,
)
from hf_xlsr.modeling.lightweight.configuration_lightweight import paper_encoder_config
from hf_xlsr.runs.methods.base import TrainingData
from hf_xlsr.runs.methods.sentence_encoder import ENCODER, OneEncoderMethod, OneEncoderRecipe
from hf_xlsr.runs.sections import section_of
from hf_xlsr.trainers.arguments import LightweightTrainingArguments
from hf_xlsr.trainers.lightweight import DistillationTrainer, LightweightTrainer
from hf_xlsr.utils.validation import Section
from hf_xlsr.utils.variables import expand


class LightweightRecipe(OneEncoderRecipe):
    method: Literal["lightweight"]


class LightweightMethod(OneEncoderMethod):
    """`method: lightweight`. `model.encoder` describes the shared encoder, or names a pretrained one by `path`."""

    name = "lightweight"
    recipe_class: ClassVar[Any] = LightweightRecipe
    model_section = section_of(LightweightConfig, encoder=ENCODER)
    config_class = LightweightConfig
    arguments_class = LightweightTrainingArguments
    trainer_class: ClassVar[Any] = LightweightTrainer
    model_class: ClassVar[Any] = LightweightDualTransformer
    free_values = DROPOUTS

    def check(self, arguments: Any, sets: Mapping[str, Any]) -> None:
        super().check(arguments, sets)
        if self.config.masking != "none":
            self.check_tokenizer(MaskDrawer)

    def new_config(self, model_type: str, **values: Any) -> PreTrainedConfig:
        if model_type == "bert":
            return paper_encoder_config(**values)
        return super().new_config(model_type, **values)

    def dropout(self, text_config: PreTrainedConfig) -> dict[str, float]:
        """That of the encoder's configuration, which `model.encoder` may change."""
        return {name: getattr(text_config, name) for name in DROPOUTS if hasattr(text_config, name)}


class TeacherSection(Section):
    path: str | None = Field(None, description="folder or Hub id of a sentence encoder")
    prompt: str | None = Field(
        None, description="text before every sentence, such as `query: `, or none if it is empty; by default its own"
    )
    center: bool = Field(True, description="whether the mean embedding of the training texts is subtracted")
    vectors: str | None = Field(None, description="folder of its embeddings; by default in the cache")


class DistillationRecipe(OneEncoderRecipe):
    method: Literal["distillation"]
    teacher: TeacherSection = TeacherSection()


class DistillationMethod(LightweightMethod):
    """`method: distillation`. `model.encoder` is the student: a new encoder, or a pretrained or pruned one by `path`."""

    name = "distillation"
    recipe_class = DistillationRecipe
    model_section = section_of(DistillationConfig, without=("teacher_dim",), encoder=ENCODER)
    config_class = DistillationConfig
    model_class = DistillationModel
    trainer_class = DistillationTrainer
    one_language = True

    recipe: DistillationRecipe

    def encoder_config(self, tokenizer: Any) -> PreTrainedConfig:
        """Sets dropout to 0 unless the recipe gives it: dropout only keeps a student from its teacher."""
        config = super().encoder_config(tokenizer)
        set_dropout(config, 0.0, without=self.encoder_section)
        return config

    @cached_property
    def teacher(self) -> Teacher:
        section = self.recipe.teacher
        vectors = section.vectors and expand(section.vectors)
        return Teacher(expand(section.path), prompt=section.prompt, center=section.center, vectors=vectors)

    def build_model(self, data: TrainingData) -> Any:
        return self.initialize(self.model_on_encoder(data.tokenizer, teacher_dim=self.teacher.dim))

    def compared_teacher(self, sets: Mapping[str, Any]) -> Results:
        return self.compared(self.teacher.encoder, sets, self.teacher.prompt)

    def trainer_options(self, data: TrainingData) -> dict[str, Any]:
        return {**super().trainer_options(data), "teacher": self.teacher}
