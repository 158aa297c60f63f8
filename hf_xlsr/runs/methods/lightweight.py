"""The lightweight dual transformer in recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from hf_xlsr.data.encoding import PAIRS
from hf_xlsr.data.masking import MaskDrawer
from hf_xlsr.data.pairs import PreparedData, prepare
from hf_xlsr.encoders.stock import DROPOUTS, encoder_from_pretrained
from hf_xlsr.modeling import citations
from hf_xlsr.modeling.lightweight import LightweightConfig, LightweightDualTransformer
from hf_xlsr.modeling.lightweight.configuration_lightweight import paper_encoder_config
from hf_xlsr.runs.fields import section_of
from hf_xlsr.runs.methods.one_encoder import ENCODER, OneEncoderMethod, OneEncoderRecipe
from hf_xlsr.trainers.arguments import LightweightTrainingArguments
from hf_xlsr.trainers.lightweight import MASKING_OF_TASK, LightweightTrainer


class LightweightRecipe(OneEncoderRecipe):
    method: Literal["lightweight"]


class LightweightMethod(OneEncoderMethod):
    """`method: lightweight`. `model.encoder` describes the shared encoder, or names a pretrained one by `path`."""

    name = "lightweight"
    paper = "*Lightweight Cross-Lingual Sentence Representation Learning* (Mao et al., ACL 2021)"
    citation = citations.LIGHTWEIGHT
    recipe_class: ClassVar[Any] = LightweightRecipe
    model_section = section_of(LightweightConfig, without=("text_config",), encoder=ENCODER)
    config_class = LightweightConfig
    arguments_class = LightweightTrainingArguments
    trainer_class: ClassVar[Any] = LightweightTrainer
    model_class: ClassVar[Any] = LightweightDualTransformer
    row_kind = PAIRS
    free_values = DROPOUTS

    def check(self, arguments: Any, sets: Mapping[str, Any]) -> None:
        super().check(arguments, sets)
        if self.config.generative_weight and MASKING_OF_TASK[self.config.generative_task] != "none":
            self.check_tokenizer(MaskDrawer)

    def prepare(self, folder: Path, evaluation_texts: Iterator[str]) -> PreparedData:
        data, tokenizer = self.recipe.data.model_dump(), self.tokenizer_options()
        options = {"folder": folder, "kind": self.row_kind, **self.reading(evaluation_texts)}
        return prepare(data=data, tokenizer=tokenizer, **options)

    @property
    def extra_options(self) -> dict[str, Any]:
        """Values of the configuration that the recipe does not have."""
        return {}

    def build_model(self, data: PreparedData) -> Any:
        text_config = self.encoder_config(data.tokenizer, make={"bert": paper_encoder_config})
        with self.explained("model"):
            options = {**self.config_options, **self.extra_options}
            model = self.model_class(self.config_class(text_config=text_config, **options))
        if path := self.encoder_path:
            loaded = encoder_from_pretrained(path, place="model.encoder.path")
            model.encoder.load_state_dict(loaded.state_dict())
        return self.initialize(model)

    def card_facts(self, report: Mapping[str, Any]) -> dict[str, str]:
        kind = self.encoder_section.get("model_type") or self.default_type
        return {"architecture": kind, "vocabulary": f"{report['vocab_size']:,} tokens"}
