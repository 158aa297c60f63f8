"""The interface of methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from pydantic import Field
from rich.console import Console
from safetensors.torch import load_file

from hf_xlsr.data.cleaning import build_steps
from hf_xlsr.data.cleaning.cost import cleaning_cost, cost_counts
from hf_xlsr.data.encoding import PAIRS
from hf_xlsr.data.evaluation_sets import evaluation_pairs
from hf_xlsr.data.preparation import CleanRows
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.sources import Source, open_source, parse_sources
from hf_xlsr.data.training_rows import clean_pairs
from hf_xlsr.encoders.reading import weights_folder
from hf_xlsr.evaluation.before_after import SCORED, Change
from hf_xlsr.evaluation.results import Results
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.sections import Recipe, refused, training_section, validated
from hf_xlsr.trainers.adapters import add_adapters
from hf_xlsr.trainers.arguments import XlsrTrainingArguments
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.guards import read_pairs
from hf_xlsr.trainers.sharding import check_sharding
from hf_xlsr.utils.errors import XlsrError, did_you_mean, error_line
from hf_xlsr.utils.runners import Processes
from hf_xlsr.utils.validation import Section

Evaluations = Sequence[Callable[..., Any]]
MethodT = TypeVar("MethodT", bound="Method")
# Keys of `model` for methods that start from pretrained encoders.
DROPOUT = (float | None, Field(None, ge=0, le=1, description="sets every dropout of the encoder; by default its own"))
NEW_LENGTH = 200
"""Tokens of a sentence for an encoder that has no length of its own yet."""

# Keys of `model` that are not values of its configuration.
BUILDING = ("encoder", "encoders", "start", "dropout", "random_weights", "shape")


@dataclass
class Finished:
    metrics: Results
    plots: list[Path] = field(default_factory=list)
    data_hashes: dict[str, str] = field(default_factory=dict)
    dimension: int = 0
    comparison: Mapping[str, Change] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class TrainingData:
    """What a recipe trains on.

    Attributes:
        rows: Clean rows by task; the rows of the main task have an empty name, or are absent.
        tokenizer: Of all texts, or one for each language.
        cleaning_cost: What cleaning removes of known pairs, see `cost_counts`; empty without known pairs.
    """

    rows: dict[str, CleanRows]
    tokenizer: Any
    cleaning_cost: dict[str, Any] = field(default_factory=dict)

    def dataset(self, task: str) -> Any:
        """The rows of a task for a trainer; None if the recipe has none."""
        return self.rows[task].rows if task in self.rows else None

    def report(self, token_counts: Mapping[str, int]) -> dict[str, Any]:
        """The reports of the rows, those of further tasks by name, and what a trainer counted."""
        report: dict[str, Any] = {"pairs": 0}
        for task, clean in self.rows.items():
            if task:
                report[task] = clean.report
            else:
                report |= clean.report
        report |= token_counts
        if self.cleaning_cost:
            report["cleaning_cost"] = self.cleaning_cost
        if not isinstance(self.tokenizer, Mapping):
            report["vocab_size"] = len(self.tokenizer)
        return report


# What a report of training data counts of each task: the key of the number, and its name in a sentence.
COUNTED = {
    "": ("pairs", "training examples"),
    "text": ("pairs", "pairs of consecutive sentences"),
    "monolingual": ("texts", "monolingual sentences"),
    "nli": ("pairs", "inference pairs"),
}


def counted(report: Mapping[str, Any]) -> dict[str, int]:
    """Counts of training rows in a report of training data, by kind of row."""
    counts: dict[str, int] = {}
    for task, (key, kind) in COUNTED.items():
        task_report = report.get(task, {}) if task else report
        if task_report.get(key):
            counts[kind] = task_report[key]
    return counts


class _Constant:
    """Encodes every sentence alike, to list the metrics of an evaluation without a model."""

    def encode(self, sentences: Sequence[str], **_: Any) -> np.ndarray:
        return np.ones((len(sentences), 1), dtype=np.float32)

    def translate(self, sentences: Sequence[str], **_: Any) -> list[str]:
        return ["."] * len(sentences)


class Method(ABC):
    """One of the package's methods, bound to a recipe.

    A new method is a subclass in a module of this folder, a folder in `modeling/`, a module in `trainers/`, a collator
    and a recipe.
    """

    name: ClassVar[str]
    recipe_class: ClassVar[type[Recipe]]
    model_section: ClassVar[type[Section]]
    config_class: ClassVar[type]
    arguments_class: ClassVar[type]
    trainer_class: ClassVar[type[XlsrTrainer]]
    # Whether both sides of a pair may be in one language.
    one_language: ClassVar[bool] = False

    recipe: Recipe

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.processes: Processes = recipe.data.num_proc
        """What prepares the data. A recipe can name a number alone: the data of its reader go to a Ray cluster."""

    @classmethod
    def bind(cls: type[MethodT], content: Mapping[str, Any]) -> MethodT:
        """The method for a merged recipe, with or without defaults."""
        values = {key: value for key, value in content.items() if value is not None}
        data = values.get("data")
        if isinstance(data, Mapping):
            section: Any = cls.recipe_class.model_fields["data"].annotation
            keys = section.model_fields
            # Null removes what `data_from` took from another method.
            values["data"] = {key: value for key, value in data.items() if key in keys or value is not None}

        name = str(values.get("name", "recipe"))
        recipe = validated(cls.recipe_class, values, name)

        fixes = refused(cls.arguments_class)
        for key in recipe.training:
            if key in fixes:
                raise XlsrError(f"recipe '{name}': training.{key} is not supported: {fixes[key]}.")

        validated(cls.model_section, recipe.model, name, "model")
        validated(training_section(cls.arguments_class), recipe.training, name, "training")
        return cls(recipe)

    @classmethod
    def nested_keys(cls, content: Mapping[str, Any]) -> list[str]:
        """Keys of mappings inside `model` that a recipe may have, as `model.encoder.hidden_size`."""
        return []

    @classmethod
    def encoder_keys(cls, encoders: Mapping[str, str]) -> dict[str, Any]:
        """Keys of `model` that start the recipe from other encoders.

        Args:
            encoders: Path or id of the encoder of each language; under an empty name, of the encoder of all.
        """
        if set(encoders) != {""}:
            raise XlsrError(f"--encoder must be one path or id for method '{cls.name}', got {', '.join(encoders)}.")
        return {"encoder": {"path": encoders[""]}}

    @contextmanager
    def explained(self, key: str) -> Iterator[None]:
        """Raises a library's error about a value as one line with the recipe's name and the key of the value."""
        try:
            yield
        except (OSError, TypeError, ValueError, StrictDataclassError) as error:
            raise XlsrError(f"recipe '{self.recipe.name}', {key}: {error_line(error)}") from None

    @property
    def config_options(self) -> dict[str, Any]:
        return {key: value for key, value in self.recipe.model.items() if key not in BUILDING}

    @cached_property
    def config(self) -> Any:
        """The model's configuration, without what depends on the encoder or the tokenizer."""
        with self.explained("model"):
            return self.config_class(**self.config_options)

    def evaluation_sets(self) -> dict[str, Any]:
        """The content of `data.dev`, `data.test` and `evaluation.guard`, as the other functions of the method take it.

        Guards are by name.
        """
        languages = self.recipe.languages
        return {
            "dev": evaluation_pairs(self.sources("dev"), languages=languages, split="dev"),
            "test": evaluation_pairs(self.sources("test"), languages=languages, split="test"),
            "guard": self.guards(),
        }

    def guards(self) -> dict[str, Any]:
        """The rows of `evaluation.guard` by name."""
        guards: dict[str, Any] = {}
        for source in parse_sources(self.recipe.evaluation.guard):
            if source.name in guards:
                raise XlsrError(f"two sets of evaluation.guard are named '{source.name}'; rename a file.")
            guards[source.name] = read_pairs(source, f"evaluation.guard: {source.name}", self.recipe.languages)
        return guards

    def evaluation_texts(self, sets: Mapping[str, Any]) -> Iterator[str]:
        """The sentences of the evaluation sets, which training must not see."""
        for row in chain(sets["dev"], sets["test"], *sets["guard"].values()):
            for name in (*PAIRS.texts, *SCORED[:2]):
                if name in row:
                    yield row[name]

    def set_name(self, split: str) -> str:
        """The name of the dev or test set in metric keys."""
        return self.sources(split)[0].name

    def sources(self, key: str) -> list[Source]:
        """The sources of a key of `data`."""
        return parse_sources(getattr(self.recipe.data, key))

    @abstractmethod
    def evaluations(self, sets: Mapping[str, Any]) -> Evaluations:
        """Functions of the live encoder that give metrics during training; none without a dev set."""

    def metric_names(self, sets: Mapping[str, Any]) -> list[str]:
        """Metrics that the evaluations give."""
        names: list[str] = []
        for evaluation in self.evaluations(sets):
            names += evaluation(_Constant())
        return names

    def check(self, arguments: Any, sets: Mapping[str, Any]) -> None:
        """Checks what would otherwise fail after the data are prepared."""
        _ = self.config
        check_sharding(arguments, refusal=self.trainer_class.no_sharding, adapters=self.recipe.adapters.rank > 0)
        best = arguments.metric_for_best_model
        if best is None or not sets["dev"]:
            return

        names = self.metric_names(sets)
        if best.removeprefix("eval_") not in names:
            raise XlsrError(
                f"recipe '{self.recipe.name}': training.metric_for_best_model needs a metric of the dev set, got "
                f"'{best}'; {did_you_mean(best, names)}"
            )

    def check_complete(self) -> None:
        """Raises an error that names the options which an incomplete recipe needs."""
        missing = []
        if not self.recipe.languages:
            missing += ["--train FILE", "--languages en,de"]
        if self.recipe.model.keys().isdisjoint(("encoders", "encoder", "start")):
            missing.append("--encoder ID")
        if hasattr(self.recipe, "teacher") and not self.recipe.teacher.path:
            missing.append("--teacher.path ID")
        if missing:
            raise XlsrError(f"recipe '{self.recipe.name}' needs {' and '.join(missing)}.")

    def reading(self, evaluation_texts: SeenHashes) -> dict[str, Any]:
        """Arguments that all functions of `hf_xlsr.data.training_rows` take."""
        return {
            "languages": self.recipe.languages,
            "evaluation_texts": evaluation_texts,
            "seed": self.recipe.seed,
            "num_proc": self.processes,
        }

    @property
    def max_length(self) -> int | None:
        """Number of tokens that sentences are truncated to; None for that of the encoder."""
        return self.recipe.data.max_length

    def clean_pairs(self, evaluation_texts: SeenHashes) -> CleanRows:
        """The clean translation pairs of `data.train`."""
        data = self.recipe.data
        return clean_pairs(
            self.sources("train"),
            cleaning=data.cleaning,
            fraction=data.fraction,
            limit=data.limit,
            one_language=self.one_language,
            **self.reading(evaluation_texts),
        )

    def cleaning_cost(self) -> dict[str, Any]:
        """What the cleaning steps remove of `data.known`, see `cost_counts`; empty if the recipe names no known pairs."""
        known = self.sources("known") if hasattr(self.recipe.data, "known") else []
        if not known:
            return {}
        languages = self.recipe.languages
        rows = chain.from_iterable(open_source(source, languages=languages) for source in known)
        steps = build_steps(self.recipe.data.cleaning, languages)
        return cost_counts(cleaning_cost(steps, rows, seed=self.recipe.seed))

    @abstractmethod
    def read_data(self, evaluation_texts: SeenHashes) -> TrainingData:
        """Clean rows and tokenizers, from the cache or made there."""

    @abstractmethod
    def build_model(self, data: TrainingData) -> Any:
        """The model of the recipe for its data; with adapters, in a PEFT wrapper."""

    def trainer_options(self, data: TrainingData) -> dict[str, Any]:
        """Arguments of the trainer that come from the data."""
        return {"train_dataset": data.dataset(""), "processing_class": data.tokenizer}

    def arguments(self, folder: Path, sets: Mapping[str, Any]) -> XlsrTrainingArguments:
        """The training arguments of the recipe, which write to the folder."""
        recipe = self.recipe
        options = {"report_to": "none", "run_name": recipe.name, **recipe.training}
        if not sets["dev"]:
            if options.get("early_stopping_patience"):
                raise XlsrError(f"recipe '{recipe.name}': training.early_stopping_patience needs data.dev.")
            if not sets["guard"]:
                options["eval_strategy"] = "no"
        options = {key: value for key, value in options.items() if value is not None}

        options |= {"output_dir": str(folder), "seed": recipe.seed, "max_length": self.max_length}
        options["num_proc"] = self.processes
        options |= self.more_arguments()
        with self.explained("training"):
            arguments: XlsrTrainingArguments = self.arguments_class(**options)
            return arguments

    def more_arguments(self) -> dict[str, Any]:
        """Training arguments that other sections of the recipe set."""
        return {}

    def build_trainer(
        self,
        arguments: XlsrTrainingArguments,
        data: TrainingData,
        sets: Mapping[str, Any],
    ) -> XlsrTrainer:
        """The trainer of the recipe, with the model for its data."""
        torch.manual_seed(self.recipe.seed)
        model = self.build_model(data)
        measured = {"evaluations": self.evaluations(sets), "guards": sets["guard"]}
        return self.trainer_class(model, arguments, **measured, **self.trainer_options(data))

    def initialize(self, model: Any) -> Any:
        """Loads the weights of `start_from` into a new model and adds adapters, if the recipe has them."""
        if self.recipe.start_from:
            start_from(model, self.recipe.start_from)
        adapters = self.recipe.adapters
        return add_adapters(model, **adapters.model_dump()) if adapters.rank else model

    @abstractmethod
    def evaluate_and_export(
        self,
        folder: RunFolder,
        trainer: XlsrTrainer,
        data: TrainingData,
        sets: Mapping[str, Any],
        console: Console,
    ) -> Finished:
        """Writes the model to `folder.model`, evaluates it as loaded from there, and prints the results."""

    def card_facts(self, report: Mapping[str, Any]) -> dict[str, str]:
        """Facts for the model card, by heading, from the report of the training data."""
        facts = {kind: f"{count:,}" for kind, count in counted(report).items()}
        if report.get("vocab_size"):
            facts["vocabulary"] = f"{report['vocab_size']:,} tokens"
        return facts

    def describe_data(self, report: Mapping[str, Any]) -> str:
        """A report of training data in a sentence for the console."""
        counts = counted(report)
        for step, rows in report.get("cleaning", {}).items():
            counts[f"removed by {step}"] = rows["in"] - rows["out"]
        counts["bad lines"] = sum(report.get("rejected", {}).values())
        counts["truncated"] = report.get("num_truncated", 0)
        counts["tokens in the vocabulary"] = report.get("vocab_size") or 0
        facts = [f"{count:,} {kind}" for kind, count in counts.items() if count]
        return f"{', '.join(facts)}."

    @property
    def exported(self) -> bool:
        """Whether the model is a folder that sentence-transformers or transformers loads."""
        return True

    def routes(self) -> tuple[str, ...]:
        """The languages that users of the export must name; empty for a shared encoder."""
        return ()


def start_from(model: Any, path: str | Path) -> None:
    """Gives a model the weights that a folder has under the same names; the others keep their values.

    A model's `starting_weights` may leave some out or add others: dual momentum's queues of another size or storage
    start empty, and momentum encoders that the folder lacks start as copies.
    """
    folder = weights_folder(path)
    names = model.state_dict().keys()
    stored_weights: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        for name, value in load_file(file).items():
            if name in names:
                stored_weights[name] = value

    weights = model.starting_weights(stored_weights)
    if not weights:
        raise XlsrError(f"start_from '{folder}' has no weight of this model; expected a run of the same method.")

    try:
        model.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise XlsrError(f"start_from '{folder}' has another encoder or vocabulary: {error_line(error, 300)}") from None

    if hasattr(model, "tie_weights"):
        model.tie_weights()
