"""What every method gives to the running of recipes."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from hf_xlsr.data.prepare import PreparedData
from hf_xlsr.errors import XlsrError, nearest
from hf_xlsr.trainers.base import XlsrTrainer


def own_fields(config_class: type) -> list[str]:
    """The fields of a configuration class that are not those of every `PreTrainedConfig`."""
    common = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    return [field.name for field in dataclasses.fields(config_class) if field.name not in common]


def encoder_keys(model_type: str) -> list[str]:
    """The values of a stock encoder's configuration.

    Raises:
        XlsrError: there is no such architecture.
    """
    if model_type not in CONFIG_MAPPING:
        raise XlsrError(f"model.encoder.model_type is '{model_type}'; {nearest(str(model_type), CONFIG_MAPPING)}")
    return list(AutoConfig.for_model(model_type).to_dict())


def one_line(error: Exception) -> str:
    """An error's text without its line breaks."""
    return " ".join(str(error).split())


class Method(ABC):
    """One of the package's methods, as recipes see it.

    A new method is a subclass here, a folder in `modeling/`, a file in `trainers/` and recipes.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    citation: ClassVar[str]
    config_class: ClassVar[type]
    arguments_class: ClassVar[type]
    # Sections of the recipe beside data, model, training, evaluation and export, with their defaults.
    sections: ClassVar[dict[str, dict[str, Any]]] = {}

    @abstractmethod
    def model_keys(self, recipe: Mapping[str, Any]) -> dict[str, list[str]]:
        """The known keys of `model` and of mappings inside it, by dotted section."""

    def complete(self, recipe: dict[str, Any]) -> None:  # noqa: B027 - a method may have nothing to add
        """Fills in values that follow from others, and checks those that only this method knows.

        Raises:
            XlsrError: a value does not go with the method.
        """

    @abstractmethod
    def prepare(self, recipe: Mapping[str, Any], folder: Path, evaluation_texts: Iterator[str]) -> PreparedData:
        """Training data and tokenizers, made in `folder` or taken from there."""

    @abstractmethod
    def build_trainer(
        self, recipe: Mapping[str, Any], folder: Path, data: PreparedData, evaluations: Sequence[Callable[..., Any]]
    ) -> XlsrTrainer:
        """The trainer, with its model.

        Args:
            recipe: Resolved.
            folder: Where checkpoints go.
            data: From `prepare`.
            evaluations: Protocols to run while training.
        """

    @abstractmethod
    def export(self, recipe: Mapping[str, Any], trainer: XlsrTrainer, data: PreparedData, path: Path) -> Any:
        """Writes the sentence-transformers folder and returns the encoder as that folder gives it."""

    @abstractmethod
    def facts(self, recipe: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, str]:
        """What the model card says of the encoders, by heading.

        Args:
            recipe: Resolved.
            report: Of `prepare`.
        """

    def routes(self, recipe: Mapping[str, Any]) -> tuple[str, ...]:
        """The languages that users of the export have to name; none where one encoder takes all."""
        return ()

    def arguments(self, recipe: Mapping[str, Any], folder: Path, evaluations: Sequence[Any]) -> Any:
        """The training arguments that the recipe's `training` section describes.

        Raises:
            XlsrError: a value does not fit.
        """
        options = {"disable_tqdm": None, "report_to": "none", **recipe["training"]}
        if not evaluations:
            options["eval_strategy"] = "no"
        try:
            return self.arguments_class(
                output_dir=str(folder), seed=recipe["seed"], **{k: v for k, v in options.items() if v is not None}
            )
        except (TypeError, ValueError) as error:
            raise XlsrError(f"recipe '{recipe['name']}', training: {one_line(error)}") from None
