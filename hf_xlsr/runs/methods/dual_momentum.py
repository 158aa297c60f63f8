"""Dual momentum contrast in recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from hf_xlsr.data.cleaning import evaluation_keys
from hf_xlsr.data.nli import prepare_nli
from hf_xlsr.data.pairs import PreparedData, prepare
from hf_xlsr.data.sources import as_list, expand
from hf_xlsr.modeling.dual_momentum import DualMomentumConfig, DualMomentumModel
from hf_xlsr.modeling.dual_momentum.configuration_dual_momentum import SHARED
from hf_xlsr.runs.methods.base import ADAPTERS_SECTION, DROPOUT, own_keys
from hf_xlsr.runs.methods.encoder_section import check_positions
from hf_xlsr.runs.methods.sentence_encoder import NLI_LABELS, NLI_SECTION, SentenceEncoderMethod
from hf_xlsr.runs.recipe_keys import Key
from hf_xlsr.trainers.arguments import DualMomentumTrainingArguments
from hf_xlsr.trainers.dual_momentum import DualMomentumTrainer
from hf_xlsr.utils.errors import XlsrError, error_line

ENCODERS = Key(None, f"a pretrained encoder for each language, or one as `{SHARED}`", ("mapping",))


class DualMomentumMethod(SentenceEncoderMethod):
    """`method: dual_momentum`. `model.encoders` names a pretrained encoder for each language, or one as `shared`."""

    name = "dual_momentum"
    paper = "*Aligning Cross-lingual Sentence Representations with Dual Momentum Contrast* (Wang et al., EMNLP 2021)"
    citation = """@inproceedings{wang2021aligning,
  title     = {Aligning Cross-lingual Sentence Representations with Dual Momentum Contrast},
  author    = {Wang, Liang and Zhao, Wei and Liu, Jingming},
  booktitle = {Proceedings of EMNLP},
  year      = {2021}
}"""
    config_class = DualMomentumConfig
    arguments_class = DualMomentumTrainingArguments
    trainer_class = DualMomentumTrainer
    sections = {
        "nli": NLI_SECTION,
        "adapters": ADAPTERS_SECTION,
    }

    def sources(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        return super().sources(recipe) | {"nli.train": (recipe.get("nli") or {}).get("train")}

    def model_keys(self, recipe: Mapping[str, Any]) -> dict[str, dict[str, Key]]:
        given = own_keys(DualMomentumConfig, "languages", "encoder_configs", "nli_labels")
        path = Key(None, "folder or id of a pretrained encoder; environment variables are filled in", ("str",))
        return {
            "model": {**given, "dropout": DROPOUT, "encoders": ENCODERS},
            "model.encoders": dict.fromkeys([*as_list(recipe.get("languages")), SHARED], path),
        }

    def validate(self, recipe: dict[str, Any]) -> None:
        encoders, languages = recipe["model"].get("encoders") or {}, as_list(recipe["languages"])
        if set(encoders) != {SHARED} and set(encoders) != set(languages):
            lacking = [language for language in languages if language not in encoders]
            raise XlsrError(
                f"recipe '{recipe['name']}': model.encoders has {', '.join(encoders) or 'nothing'}"
                + (f" but none for {', '.join(lacking)}" if lacking else "")
                + f"; name one for each language, or a single one as '{SHARED}'."
            )
        options = {name: value for name, value in recipe["model"].items() if name not in ("encoders", "dropout")}
        try:  # what can be said before data are prepared for it
            DualMomentumConfig(languages=languages, **options)
        except (XlsrError, StrictDataclassError) as error:
            raise XlsrError(f"recipe '{recipe['name']}', model: {error_line(error)}") from None
        for name, path in encoders.items():
            if not isinstance(path, str):
                raise XlsrError(
                    f"recipe '{recipe['name']}': model.encoders.{name} is {path!r}; give a folder or Hub id."
                )

    @staticmethod
    def paths(recipe: Mapping[str, Any]) -> dict[str, str]:
        """Where each encoder comes from, by its name."""
        return {name: expand(path) for name, path in recipe["model"]["encoders"].items()}

    def prepare(self, recipe: Mapping[str, Any], folder: Path, evaluation_texts: Iterator[str]) -> PreparedData:
        paths, languages = self.paths(recipe), recipe["languages"]
        kept_out = evaluation_keys({"text": text} for text in evaluation_texts)
        data = prepare(
            data=recipe["data"],
            tokenizer=None,
            tokenizers={language: paths.get(language) or paths[SHARED] for language in languages},
            languages=languages,
            evaluation_texts=kept_out,
            folder=folder,
            seed=recipe["seed"],
        )
        if as_list(recipe["nli"]["train"]):
            data.nli = prepare_nli(
                as_list(recipe["nli"]["train"]),
                languages=languages,
                tokenizers=data.tokenizers,
                folder=folder / "nli",
                evaluation_texts=kept_out,
                max_length=recipe["data"]["max_length"],
                seed=recipe["seed"],
            )
        return data

    def build_model(self, recipe: Mapping[str, Any], data: PreparedData) -> Any:
        """The model that a recipe describes; with adapters, in a PEFT wrapper.

        Raises:
            XlsrError: an encoder does not load, or a value does not fit.
        """
        options = {name: value for name, value in recipe["model"].items() if name != "encoders"}
        try:
            model = DualMomentumModel.from_encoders(
                self.paths(recipe),
                languages=list(recipe["languages"]),
                nli_labels=NLI_LABELS if data.nli is not None else 0,
                **options,
            )
        except (TypeError, ValueError) as error:
            raise XlsrError(f"recipe '{recipe['name']}', model: {error_line(error)}") from None
        for name, encoder in model.encoders.items():
            check_positions(encoder, recipe, place=f"encoder {name}")
        return self.initialize(recipe, model)

    def trainer_options(self, data: PreparedData) -> dict[str, Any]:
        return {"tokenizers": data.tokenizers, "nli_dataset": data.nli}

    def routes(self, recipe: Mapping[str, Any]) -> tuple[str, ...]:
        return () if SHARED in recipe["model"]["encoders"] else tuple(recipe["languages"])

    def card_facts(self, recipe: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, str]:
        names = {name: Path(path).name for name, path in self.paths(recipe).items()}
        return {"encoders": ", ".join(f"{name}: {path}" for name, path in names.items())}
