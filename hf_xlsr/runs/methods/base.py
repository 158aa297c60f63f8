"""What every method gives to the running of recipes."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from hf_xlsr.data.sources import SOURCE_KEYS
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.recipe_keys import Key, config_keys
from hf_xlsr.runs.starting import start_from
from hf_xlsr.trainers.adapters import DEFAULT_MODULES, add_adapters
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.sharding import check_sharding
from hf_xlsr.utils.errors import XlsrError, did_you_mean, error_line

Evaluations = Sequence[Callable[..., Any]]
# The section `adapters`: LoRA.
ADAPTERS_SECTION = {
    "rank": Key(0, "rank of the LoRA adapters that are trained instead of the encoders; 0 is none", least=0),
    "alpha": Key(32, "their scale is alpha / rank", least=1),
    "dropout": Key(0.0, "before them", least=0, most=1),
    "modules": Key(list(DEFAULT_MODULES), "layers that take one, by the ends of their names", ("list", "str")),
}
# A key of `model` where the encoder is a pretrained one, or one of our own making.
DROPOUT = Key(None, "sets every dropout of the encoder; its own when absent", ("float",), least=0, most=1)
START = Key(None, "an encoder, a HICTL model, or the folder of a run; a path or an id of the Hub", ("str",))


@dataclass
class Finished:
    """What a method made of a finished training.

    Args:
        metrics: Test metrics by name; empty without a test set.
        plots: Images that it drew.
        data_hashes: Test set -> hash of its texts.
        dimension: Width of the vectors that the model gives.
    """

    metrics: dict[str, float]
    plots: list[Path] = field(default_factory=list)
    data_hashes: dict[str, str] = field(default_factory=dict)
    dimension: int = 0


def own_keys(config_class: type, *without: str) -> dict[str, Key]:
    """Keys that are fields of a configuration class, but not of every `PreTrainedConfig`, nor `without`."""
    common = {field.name for field in dataclasses.fields(PreTrainedConfig)} | set(without)
    return config_keys(config_class, [f.name for f in dataclasses.fields(config_class) if f.name not in common])


def encoder_keys(model_type: str) -> dict[str, Key]:
    """The values of a stock encoder's configuration.

    Raises:
        XlsrError: there is no such architecture.
    """
    if model_type not in CONFIG_MAPPING:
        raise XlsrError(f"model.encoder.model_type is '{model_type}'; {did_you_mean(str(model_type), CONFIG_MAPPING)}")
    config = AutoConfig.for_model(model_type)
    return config_keys(config, config.to_dict())


class Method(ABC):
    """One of the package's methods, as recipes see it.

    A new method is a subclass here, a folder in `modeling/`, a file in `trainers/` and recipes.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    citation: ClassVar[str]
    config_class: ClassVar[type]
    arguments_class: ClassVar[type]
    trainer_class: ClassVar[type[XlsrTrainer]]
    # Sections of the recipe beside data, model and training, and keys beside those of every method; what is no `Key` is
    # another default of a key that is there.
    sections: ClassVar[dict[str, dict[str, Any]]] = {}
    # Keys of a source in `data`.
    source_keys: ClassVar[Mapping[str, str]] = SOURCE_KEYS
    min_languages: ClassVar[int] = 2
    # How the model card files what the method makes.
    card_template: ClassVar[str] = "card_task.md.jinja"
    card_tags: ClassVar[tuple[str, ...]] = ()
    pipeline_tag: ClassVar[str] = "sentence-similarity"
    library_name: ClassVar[str] = "transformers"

    @abstractmethod
    def model_keys(self, recipe: Mapping[str, Any]) -> dict[str, dict[str, Key]]:
        """The known keys of `model` and of mappings inside it, by dotted section."""

    def validate(self, recipe: dict[str, Any]) -> None:  # noqa: B027 - a method may have nothing to add
        """Fills in values that follow from others, and checks those that only this method knows.

        Raises:
            XlsrError: a value does not go with the method.
        """

    def sources(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """Every place of the recipe that holds a source, or a list of them, of the keys `source_keys`."""
        data = recipe.get("data") or {}
        return {f"data.{split}": data.get(split) for split in ("train", "dev", "test", "held_out")}

    @abstractmethod
    def evaluation_sets(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """What `data.dev` and `data.test` hold, by split, in a form that the method's own functions take.

        Raises:
            XlsrError: a set does not read.
        """

    @abstractmethod
    def evaluation_texts(self, recipe: Mapping[str, Any], sets: Mapping[str, Any]) -> Iterator[str]:
        """The sentences that training must not see: those of the evaluation sets and of `data.held_out`.

        Args:
            recipe: Resolved.
            sets: From `evaluation_sets`.
        """

    @abstractmethod
    def evaluations(self, recipe: Mapping[str, Any], sets: Mapping[str, Any]) -> Evaluations:
        """Functions of the live encoder that give metrics while training goes on."""

    @abstractmethod
    def metric_names(self, recipe: Mapping[str, Any], sets: Mapping[str, Any]) -> list[str]:
        """The names of the metrics that `evaluations` give."""

    def check_training(self, recipe: Mapping[str, Any], folder: Path, sets: Mapping[str, Any]) -> None:
        """Refuses training arguments that would be found wrong after the data have been prepared, or later.

        Args:
            recipe: Resolved.
            folder: Where checkpoints would go.
            sets: From `evaluation_sets`.

        Raises:
            XlsrError: a value does not fit, a metric is unknown, or there is nothing to measure it on.
        """
        name, given, evaluations = recipe["name"], recipe["training"], self.evaluations(recipe, sets)
        if given.get("early_stopping_patience") and not evaluations:
            raise XlsrError(
                f"recipe '{name}': training.early_stopping_patience needs something to measure on; give data.dev."
            )
        arguments = self.arguments(recipe, folder, evaluations)
        adapters = bool((recipe.get("adapters") or {}).get("rank"))
        check_sharding(arguments, refusal=self.trainer_class.no_sharding, adapters=adapters)
        best = arguments.metric_for_best_model
        if best is None or not evaluations:
            return
        known = self.metric_names(recipe, sets)
        if best.removeprefix("eval_") not in known:  # Trainer would say so after its first evaluation
            place = "metric_for_best_model" if given.get("metric_for_best_model") else "load_best_model_at_end"
            value = f"'{best}'" if place == "metric_for_best_model" else "true without metric_for_best_model"
            raise XlsrError(f"recipe '{name}': training.{place} is {value}; {did_you_mean(best, known)}")

    @abstractmethod
    def prepare(self, recipe: Mapping[str, Any], folder: Path, evaluation_texts: Iterator[str]) -> Any:
        """Training data and tokenizers, made in `folder` or taken from there.

        Returns:
            Something with a `report`; `PreparedData` where the data are pairs.
        """

    @abstractmethod
    def build_model(self, recipe: Mapping[str, Any], data: Any) -> Any:
        """The model that a recipe describes, for its data; with adapters, in a PEFT wrapper.

        Raises:
            XlsrError: a value does not fit, or an encoder does not load.
        """

    def trainer_options(self, data: Any) -> dict[str, Any]:
        """What the trainer takes of the data beside `train_dataset`."""
        return {"processing_class": data.tokenizer}

    def build_trainer(
        self, recipe: Mapping[str, Any], folder: Path, data: Any, evaluations: Evaluations
    ) -> XlsrTrainer:
        """The trainer, with its model.

        Args:
            recipe: Resolved.
            folder: Where checkpoints go.
            data: From `prepare`.
            evaluations: From `evaluations`.
        """
        arguments = self.arguments(recipe, folder, evaluations)
        torch.manual_seed(recipe["seed"])
        trainer = self.trainer_class(
            self.build_model(recipe, data),
            arguments,
            train_dataset=data.train,
            max_length=recipe["data"]["max_length"],
            evaluations=evaluations,
            **self.trainer_options(data),
        )
        trainer.export_options = dict(recipe.get("export") or {})
        return trainer

    def initialize(self, recipe: Mapping[str, Any], model: Any) -> Any:
        """Gives a new model the weights of `start_from` and the adapters of `adapters`, where the recipe has them.

        Raises:
            XlsrError: the weights do not fit, or no layer takes an adapter.
        """
        if recipe["start_from"]:
            start_from(model, recipe["start_from"])
        adapters = recipe.get("adapters") or {}
        return add_adapters(model, **adapters) if adapters.get("rank") else model

    @abstractmethod
    def evaluate_and_export(
        self,
        recipe: Mapping[str, Any],
        folder: RunFolder,
        trainer: XlsrTrainer,
        data: Any,
        sets: Mapping[str, Any],
        console: Console,
    ) -> Finished:
        """Writes the model into `folder.model`, evaluates it as loaded from there, and shows what it found.

        Args:
            recipe: Resolved.
            folder: Of the run.
            trainer: At the end of its training.
            data: From `prepare`.
            sets: From `evaluation_sets`.
            console: For tables.
        """

    @abstractmethod
    def card_facts(self, recipe: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, str]:
        """What the model card says of the encoders, by heading.

        Args:
            recipe: Resolved.
            report: Of `prepare`.
        """

    def describe_data(self, report: Mapping[str, Any]) -> str:
        """What `prepare` made, in a sentence for the console."""
        removed = {
            step: counts["in"] - counts["out"]
            for step, counts in report["cleaning"].items()
            if counts["in"] > counts["out"]
        }
        gone = ", ".join(f"{step} removed {count:,}" for step, count in removed.items()) or "nothing removed"
        bad = sum(report["rejected"].values())
        pieces = f"{report['vocab_size']:,} pieces; " if report.get("vocab_size") else ""
        return (
            f"{report['pairs']:,} training pairs ({gone}; {bad:,} bad lines), {pieces}"
            f"{report['num_truncated']:,} sentences were truncated."
        )

    def card_use(self, recipe: Mapping[str, Any]) -> str:
        """Python that loads and runs the model, for the card of a method that makes no sentence encoder."""
        return ""

    def routes(self, recipe: Mapping[str, Any]) -> tuple[str, ...]:
        """The languages that users of the export have to name; none where one encoder takes all."""
        return ()

    def arguments(self, recipe: Mapping[str, Any], folder: Path, evaluations: Sequence[Any]) -> Any:
        """The training arguments that the recipe's `training` section describes.

        Raises:
            XlsrError: a value does not fit.
        """
        options = {"disable_tqdm": None, "report_to": "none", "run_name": recipe["name"], **recipe["training"]}
        if not evaluations:
            options["eval_strategy"] = "no"
        try:
            return self.arguments_class(
                output_dir=str(folder), seed=recipe["seed"], **{k: v for k, v in options.items() if v is not None}
            )
        except (TypeError, ValueError) as error:
            raise XlsrError(f"recipe '{recipe['name']}', training: {error_line(error)}") from None
