"""Distillation in recipes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import Field

from hf_xlsr.data.encoding import TAUGHT_PAIRS
from hf_xlsr.data.sources import expand
from hf_xlsr.encoders.teacher import Teacher
from hf_xlsr.modeling import citations
from hf_xlsr.modeling.distillation import DistillationConfig, DistillationModel
from hf_xlsr.runs.fields import section_of
from hf_xlsr.runs.methods.lightweight import LightweightMethod
from hf_xlsr.runs.methods.one_encoder import ENCODER, OneEncoderRecipe
from hf_xlsr.trainers.distillation import DistillationTrainer
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.validation import Section


class TeacherSection(Section):
    path: str | None = Field(None, description="folder or Hub id of a sentence encoder")
    prompt: str = Field("", description="text before every sentence, such as `query: `")
    center: bool = Field(True, description="whether the mean embedding of the training texts is subtracted")
    vectors: str | None = Field(None, description="folder of its embeddings; by default in the cache")


class DistillationRecipe(OneEncoderRecipe):
    method: Literal["distillation"]
    teacher: TeacherSection = TeacherSection()


class DistillationMethod(LightweightMethod):
    """`method: distillation`. `model.encoder` is the student: a new encoder, or a pretrained or pruned one by `path`."""

    name = "distillation"
    paper = (
        "*Making Monolingual Sentence Embeddings Multilingual using Knowledge Distillation* (Reimers and Gurevych, "
        "EMNLP 2020), with in-batch contrast"
    )
    citation = citations.DISTILLATION
    recipe_class = DistillationRecipe
    model_section = section_of(DistillationConfig, without=("text_config", "teacher_dim"), encoder=ENCODER)
    config_class = DistillationConfig
    model_class = DistillationModel
    trainer_class = DistillationTrainer
    row_kind = TAUGHT_PAIRS

    recipe: DistillationRecipe

    @classmethod
    def encoder_keys(cls, encoders: Mapping[str, str]) -> dict[str, Any]:
        path = super().encoder_keys(encoders)["encoder"]["path"]
        # Dropout only keeps a student from its teacher.
        return {"encoder": {"path": path, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}}

    def check_complete(self) -> None:
        super().check_complete()
        if not self.recipe.teacher.path:
            raise XlsrError(f"recipe '{self.recipe.name}' needs --teacher.path ID.")

    @cached_property
    def teacher(self) -> Teacher:
        section = self.recipe.teacher
        vectors = expand(section.vectors) if section.vectors else None
        return Teacher(expand(section.path), prompt=section.prompt, center=section.center, vectors=vectors)

    @property
    def extra_options(self) -> dict[str, Any]:
        return {"teacher_dim": self.teacher.dim}

    def trainer_options(self, data: Any) -> dict[str, Any]:
        return {**super().trainer_options(data), "teacher": self.teacher}

    def card_facts(self, report: Any) -> dict[str, str]:
        return {**super().card_facts(report), "teacher": str(self.recipe.teacher.path)}
