"""CMLM in recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from hf_xlsr.data.cleaning import evaluation_keys
from hf_xlsr.data.collators.masking import MaskDrawer
from hf_xlsr.data.nli import prepare_nli
from hf_xlsr.data.pairs import PreparedData, load_tokenizer, prepare
from hf_xlsr.data.running_text import prepare_running_text
from hf_xlsr.data.sources import as_list, expand
from hf_xlsr.modeling.cmlm import CmlmConfig, CmlmModel
from hf_xlsr.runs.methods.base import ADAPTERS_SECTION, DROPOUT, own_keys
from hf_xlsr.runs.methods.encoder_section import (
    ENCODER,
    FRAMED_TOKENIZER_SECTION,
    check_given_tokenizer,
    check_positions,
    complete_tokenizer,
    encoder_config,
    encoder_path,
    encoder_section_keys,
    model_on_encoder,
    pretrained_config,
    tokenizer_options,
)
from hf_xlsr.runs.methods.sentence_encoder import NLI_LABELS, NLI_SECTION, SentenceEncoderMethod
from hf_xlsr.runs.recipe_keys import Key
from hf_xlsr.trainers.arguments import CmlmTrainingArguments
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.cmlm import CmlmTrainer
from hf_xlsr.utils.errors import XlsrError, error_line


@dataclass
class CmlmData(PreparedData):
    """What a run trains on: `train` is its running text, `pairs` its translations, `nli` its inference; None where a
    task has no data or no weight."""

    pairs: Any = None


class CmlmMethod(SentenceEncoderMethod):
    """`method: cmlm`. `model.encoder` describes the encoder, or names a pretrained one by `path`.

    `data.text` holds running text, `data.train` translation pairs, `nli.train` inference. A task takes part where it has
    data and `model` gives it a weight, so that stages may share their data and differ in weights.

    The paper's strategies are recipes: S1 (`cmlm_br`) trains CMLM and bitext retrieval from the start, S2
    (`cmlm_then_br`) one after the other, S3 (`cmlm_then_cmlm_br`) CMLM and then both. So section 4.2 numbers them; table
    4 calls S2 what is S1 there, and the other way round.
    """

    name = "cmlm"
    paper = (
        "*Universal Sentence Representation Learning with Conditional Masked Language Model* (Yang et al., EMNLP 2021)"
    )
    citation = """@inproceedings{yang2021universal,
  title     = {Universal Sentence Representation Learning with Conditional Masked Language Model},
  author    = {Yang, Ziyi and Yang, Yinfei and Cer, Daniel and Law, Jax and Darve, Eric},
  booktitle = {Proceedings of EMNLP},
  year      = {2021}
}"""
    config_class = CmlmConfig
    arguments_class = CmlmTrainingArguments
    trainer_class = CmlmTrainer
    min_languages = 1
    sections = {
        "data": {"text": Key(None, "running text: rows of sentences in the order of their documents", ("source",))},
        "nli": NLI_SECTION,
        "tokenizer": FRAMED_TOKENIZER_SECTION,
        "adapters": ADAPTERS_SECTION,
    }

    def sources(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        text, nli = ((recipe.get(section) or {}).get(key) for section, key in (("data", "text"), ("nli", "train")))
        return super().sources(recipe) | {"data.text": text, "nli.train": nli}

    def model_keys(self, recipe: Mapping[str, Any]) -> dict[str, dict[str, Key]]:
        given = own_keys(CmlmConfig, "text_config", "nli_labels")
        return {
            "model": {**given, "dropout": DROPOUT, "encoder": ENCODER},
            "model.encoder": encoder_section_keys(recipe),
        }

    def validate(self, recipe: dict[str, Any]) -> None:
        complete_tokenizer(recipe)
        try:  # what can be said before data are prepared for it
            config = self._config_at_the_door(recipe)
        except (XlsrError, StrictDataclassError) as error:
            raise XlsrError(f"recipe '{recipe['name']}', model: {error_line(error)}") from None
        if not self._active(recipe, config):
            raise XlsrError(
                f"recipe '{recipe['name']}' has nothing to train on: data.text, data.train and nli.train are empty or "
                "their weights 0; give data to a task that has a weight."
            )

    @staticmethod
    def _options(recipe: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in recipe["model"].items() if name not in ("encoder", "dropout")}

    @classmethod
    def _config_at_the_door(cls, recipe: Mapping[str, Any]) -> CmlmConfig:
        """The configuration without what depends on the encoder, which is not there yet."""
        options = cls._options(recipe)
        options.pop("prefix_token_type", None)
        return CmlmConfig(**options)

    @classmethod
    def _active(cls, recipe: Mapping[str, Any], config: CmlmConfig) -> dict[str, list[Any]]:
        """The sources of the tasks that have both data and a weight."""
        found = {
            "text": (config.cmlm_weight, recipe["data"]["text"]),
            "pairs": (config.retrieval_weight, recipe["data"]["train"]),
            "nli": (config.nli_weight, recipe["nli"]["train"]),
        }
        return {task: as_list(sources) for task, (weight, sources) in found.items() if weight and as_list(sources)}

    def check_training(self, recipe: Mapping[str, Any], folder: Path, sets: Mapping[str, Any]) -> None:
        super().check_training(recipe, folder, sets)
        pretrained_config(recipe)
        if "text" in self._active(recipe, self._config_at_the_door(recipe)):
            check_given_tokenizer(recipe, MaskDrawer)

    def prepare(self, recipe: Mapping[str, Any], folder: Path, evaluation_texts: Iterator[str]) -> CmlmData:
        active = self._active(recipe, self._config_at_the_door(recipe))
        common: dict[str, Any] = {
            "languages": recipe["languages"],
            "evaluation_texts": evaluation_keys({"text": text} for text in evaluation_texts),
            "seed": recipe["seed"],
        }
        data, length = recipe["data"], recipe["data"]["max_length"]
        path = tokenizer_options(recipe)["path"]
        given = load_tokenizer(expand(path), "tokenizer.path") if path else None
        prepared = CmlmData(None, given, {"pairs": 0, "num_truncated": 0})
        if "text" in active:
            prepared.train = prepare_running_text(
                active["text"],
                tokenizers=prepared.tokenizer or recipe["tokenizer"],
                folder=folder / "text",
                cleaning=data["cleaning"],
                max_length=length,
                **common,
            )
            prepared.tokenizer = prepared.train.tokenizer
            prepared.report["text"] = prepared.train.report
        if "pairs" in active:
            learnt = str(folder / "text" / "tokenizer") if "text" in active else None
            section = {**recipe["tokenizer"], "path": path or learnt}
            pairs = prepare(data=data, tokenizer=section, folder=folder / "pairs", **common)
            prepared.pairs, prepared.tokenizer = pairs.train, pairs.tokenizer
            prepared.report |= pairs.report
        if "nli" in active:
            if prepared.tokenizer is None:
                raise XlsrError(
                    f"recipe '{recipe['name']}' has inference alone and no tokenizer; name one in tokenizer.path, or "
                    "start from a pretrained encoder or an earlier stage."
                )
            prepared.nli = prepare_nli(
                active["nli"], tokenizers=prepared.tokenizer, folder=folder / "nli", max_length=length, **common
            )
            prepared.report["nli"] = prepared.nli.report
        prepared.report["vocab_size"] = len(prepared.tokenizer)
        return prepared

    def describe_data(self, report: Mapping[str, Any]) -> str:
        parts = []
        if text := report.get("text"):
            parts.append(f"{text['pairs']:,} pairs of consecutive sentences in {text['documents']:,} documents")
        if report["pairs"]:
            parts.append(f"{report['pairs']:,} translation pairs")
        if nli := report.get("nli"):
            parts.append(f"{nli['pairs']:,} pairs of inference")
        cut = sum((part or {}).get("num_truncated", 0) for part in (report, report.get("text"), report.get("nli")))
        return f"{', '.join(parts)}; {report['vocab_size']:,} tokens; {cut:,} sentences were truncated."

    def build_model(self, recipe: Mapping[str, Any], data: CmlmData) -> Any:
        """The model that a recipe describes, on the vocabulary of its data.

        Raises:
            XlsrError: a value does not fit, the encoder does not load, or it has too few positions.
        """
        text_config = encoder_config(recipe, data.tokenizer)
        options: dict[str, Any] = {**self._options(recipe), "nli_labels": NLI_LABELS if data.nli is not None else 0}
        model = model_on_encoder(recipe, CmlmModel, text_config, options)
        before = model.config.positions_before if data.train is not None else 0
        check_positions(model.encoder, recipe, before=before)
        return self.initialize(recipe, model)

    def trainer_options(self, data: CmlmData) -> dict[str, Any]:
        return {"processing_class": data.tokenizer, "retrieval_dataset": data.pairs, "nli_dataset": data.nli}

    def export(self, recipe: Mapping[str, Any], trainer: XlsrTrainer, path: Path) -> Any:
        """As the base; `projected` has no stock module, so that it is evaluated live and not exported."""
        if recipe["model"].get("sentence_vector") == "projected":
            return trainer.live_encoder()
        return super().export(recipe, trainer, path)

    def card_use(self, recipe: Mapping[str, Any]) -> str:
        if recipe["model"].get("sentence_vector") != "projected":
            return ""
        return (
            "from hf_xlsr import CmlmModel\n\nmodel = CmlmModel.from_pretrained('path/to/this/folder/training/final')"
        )

    def card_facts(self, recipe: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, str]:
        path, text, nli = encoder_path(recipe), report.get("text"), report.get("nli")
        return {
            **({"started from": Path(path).name} if path else {}),
            **({"earlier stage": Path(recipe["start_from"]).name} if recipe["start_from"] else {}),
            **({"consecutive sentences": f"{text['pairs']:,} pairs"} if text else {}),
            **({"inference": f"{nli['pairs']:,} pairs"} if nli else {}),
            "vocabulary": f"{report['vocab_size']:,} pieces",
        }
