"""The lightweight dual transformer in recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from hf_xlsr.data.collators.masking import MaskDrawer
from hf_xlsr.data.pairs import PreparedData, prepare
from hf_xlsr.encoders.stock import DROPOUTS, encoder_from_pretrained
from hf_xlsr.modeling.lightweight import LightweightConfig, LightweightDualTransformer
from hf_xlsr.modeling.lightweight.configuration_lightweight import paper_encoder_config
from hf_xlsr.runs.methods.base import ADAPTERS_SECTION, own_keys
from hf_xlsr.runs.methods.encoder_section import (
    ENCODER,
    TOKENIZER_SECTION,
    check_given_tokenizer,
    check_positions,
    complete_tokenizer,
    encoder_config,
    encoder_path,
    encoder_section,
    encoder_section_keys,
    pretrained_config,
    tokenizer_options,
)
from hf_xlsr.runs.methods.sentence_encoder import SentenceEncoderMethod
from hf_xlsr.runs.recipe_keys import Key
from hf_xlsr.trainers.arguments import LightweightTrainingArguments
from hf_xlsr.trainers.lightweight import MASKING_OF_TASK, LightweightTrainer
from hf_xlsr.utils.errors import XlsrError, error_line


class LightweightMethod(SentenceEncoderMethod):
    """`method: lightweight`. `model.encoder` describes the shared encoder, or names a pretrained one by `path`."""

    name = "lightweight"
    paper = "*Lightweight Cross-Lingual Sentence Representation Learning* (Mao et al., ACL 2021)"
    citation = """@inproceedings{mao2021lightweight,
  title     = {Lightweight Cross-Lingual Sentence Representation Learning},
  author    = {Mao, Zhuoyuan and Gupta, Prakhar and Wang, Pei and Chu, Chenhui and Jaggi, Martin and Kurohashi, Sadao},
  booktitle = {Proceedings of ACL-IJCNLP},
  year      = {2021}
}"""
    config_class = LightweightConfig
    arguments_class = LightweightTrainingArguments
    trainer_class = LightweightTrainer
    sections = {"tokenizer": TOKENIZER_SECTION, "adapters": ADAPTERS_SECTION}

    def model_keys(self, recipe: Mapping[str, Any]) -> dict[str, dict[str, Key]]:
        model = {**own_keys(LightweightConfig, "text_config"), "encoder": ENCODER}
        return {"model": model, "model.encoder": encoder_section_keys(recipe)}

    def validate(self, recipe: dict[str, Any]) -> None:
        complete_tokenizer(recipe)
        try:  # what can be said before data are prepared for it
            LightweightConfig(**self._options(recipe))
        except (XlsrError, StrictDataclassError) as error:
            raise XlsrError(f"recipe '{recipe['name']}', model: {error_line(error)}") from None

    @staticmethod
    def _options(recipe: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in recipe["model"].items() if name != "encoder"}

    def check_training(self, recipe: Mapping[str, Any], folder: Path, sets: Mapping[str, Any]) -> None:
        super().check_training(recipe, folder, sets)
        pretrained_config(recipe, free=DROPOUTS)
        config = LightweightConfig(**self._options(recipe))
        if config.generative_weight and MASKING_OF_TASK[config.generative_task] != "none":
            check_given_tokenizer(recipe, MaskDrawer)

    def prepare(self, recipe: Mapping[str, Any], folder: Path, evaluation_texts: Iterator[str]) -> PreparedData:
        return prepare(
            data=recipe["data"],
            tokenizer=tokenizer_options(recipe),
            languages=recipe["languages"],
            evaluation_texts=evaluation_texts,
            folder=folder,
            seed=recipe["seed"],
        )

    def build_model(self, recipe: Mapping[str, Any], data: PreparedData) -> Any:
        """The model that a recipe describes, on the vocabulary of its data.

        Raises:
            XlsrError: a value does not fit, the encoder does not load, or it has too few positions.
        """
        options = self._options(recipe)
        text_config = encoder_config(recipe, data.tokenizer, make={"bert": paper_encoder_config}, free=DROPOUTS)
        try:
            config = LightweightConfig(text_config=text_config, **options)
        except (TypeError, ValueError) as error:
            raise XlsrError(f"recipe '{recipe['name']}', model: {error_line(error)}") from None
        model = LightweightDualTransformer(config)
        if path := encoder_path(recipe):
            loaded = encoder_from_pretrained(path, place="model.encoder.path")
            model.encoder.load_state_dict(loaded.state_dict())
        check_positions(model.encoder, recipe)
        return self.initialize(recipe, model)

    def card_facts(self, recipe: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, str]:
        kind = encoder_section(recipe).get("model_type") or "bert"
        return {"architecture": kind, "vocabulary": f"{report['vocab_size']:,} pieces"}
