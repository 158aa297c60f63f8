"""Fine-tuning for classification in recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator
from rich.console import Console

from hf_xlsr.data.labelled import LabelledSet, LabelledTask, prepare_labelled, read_sets, row_text
from hf_xlsr.data.pairs import load_tokenizer
from hf_xlsr.data.prepared import PreparedRows
from hf_xlsr.data.sources import as_list
from hf_xlsr.evaluation.report import results_table
from hf_xlsr.export.card import public_path
from hf_xlsr.modeling.hictl.configuration_hictl import HictlConfig
from hf_xlsr.modeling.hictl.modeling_classification import HictlForSequenceClassification
from hf_xlsr.runs.fields import section_of
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.methods.base import DROPOUT, Evaluations, Finished
from hf_xlsr.runs.methods.fine_tuning import START, FineTuningMethod, FineTuningRecipe
from hf_xlsr.runs.sections import DataSection, NamedSources
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.fine_tune import (
    FineTuneTrainer,
    FineTuneTrainingArguments,
    LiveClassifier,
    evaluate_sets,
    metric_keys,
)
from hf_xlsr.utils.hashing import data_hash
from hf_xlsr.utils.validation import Section


@dataclass
class ClassificationData:
    """Tokenised rows, the tokenizer of the encoder, and counts of the rows."""

    train: PreparedRows
    tokenizer: Any
    report: dict[str, Any]


class ClassificationDataSection(DataSection):
    dev: NamedSources = Field(None, description="sets by name, measured during training")
    test: NamedSources = Field(None, description="sets by name, measured at the end")
    cleaning: list[Any] | dict[str, Any] | None = Field([], description="steps, by name or as `{name: options}`")
    max_length: int = Field(128, ge=1, description="rows are truncated to this many tokens")
    overlap: Literal["text", "row"] = Field("text", description="what of dev and test is not trained on")


class TaskSection(Section):
    texts: Literal["pair", "single"] = Field("pair", description="what a row holds")
    labels: list[Any] | str | None = Field(None, description="names of the classes, in the order of their numbers")
    scores: list[Any] | None = Field(None, description="smallest and largest score, of a task without classes")
    metrics: list[str] | str | None = Field(None, description="what is measured; by default what suits the task")


class ClassificationEvaluation(Section):
    protocol: str = Field("fine-tuning", pattern="^[^/]+$", description="name of the training setting in metric keys")


class ClassificationRecipe(FineTuningRecipe):
    min_languages: ClassVar[int] = 1

    method: Literal["classification"]
    data: ClassificationDataSection = ClassificationDataSection()
    task: TaskSection = TaskSection()
    evaluation: ClassificationEvaluation = ClassificationEvaluation()

    @model_validator(mode="after")
    def _check_task(self) -> ClassificationRecipe:
        _ = self.labelled_task
        return self

    @property
    def labelled_task(self) -> LabelledTask:
        scores = None if self.task.scores is None else tuple(self.task.scores)
        labels, metrics = (tuple(map(str, as_list(value))) for value in (self.task.labels, self.task.metrics))
        return LabelledTask(texts=self.task.texts, labels=labels, scores=scores, metrics=metrics)


class ClassificationMethod(FineTuningMethod):
    """`method: classification`. `model.start` names an encoder, a HICTL model or a run; `task` says what rows hold."""

    name = "classification"
    recipe_class = ClassificationRecipe
    model_section = section_of(HictlConfig, only=("classifier_dropout",), start=START, dropout=DROPOUT)
    arguments_class = FineTuneTrainingArguments
    trainer_class = FineTuneTrainer
    card_tags = ("text-classification", "cross-lingual")
    pipeline_tag = "text-classification"

    recipe: ClassificationRecipe

    @property
    def task(self) -> LabelledTask:
        return self.recipe.labelled_task

    def evaluation_sets(self) -> dict[str, list[LabelledSet]]:
        recipe = self.recipe
        return {
            split: read_sets(
                getattr(recipe.data, split), self.task, languages=recipe.languages, split=split, seed=recipe.seed
            )
            for split in ("dev", "test")
        }

    def evaluation_texts(self, sets: Mapping[str, Any]) -> Iterator[str]:
        whole_rows = self.recipe.data.overlap == "row"
        for data in [*sets["dev"], *sets["test"]]:
            for row in data.rows:
                texts = [row[name] for name in data.task.columns]
                # A pair is the same pair the other way round.
                both = (
                    row_text(dict(zip(("first", "second"), order, strict=False))) for order in (texts, texts[::-1])
                )
                yield from both if whole_rows else texts

    def evaluations(self, sets: Mapping[str, Any]) -> Evaluations:
        if not sets["dev"]:
            return []
        return [partial(evaluate_sets, sets=sets["dev"], protocol=self.recipe.evaluation.protocol)]

    def metric_names(self, sets: Mapping[str, Any]) -> list[str]:
        return metric_keys(sets["dev"], protocol=self.recipe.evaluation.protocol)

    def prepare(self, folder: Path, evaluation_texts: Iterator[str]) -> ClassificationData:
        recipe, tokenizer = self.recipe, load_tokenizer(self.start, "model.start")
        train = prepare_labelled(
            recipe.data.train,
            task=self.task,
            tokenizer=tokenizer,
            folder=folder,
            **self.reading(evaluation_texts),
            **recipe.data.model_dump(include={"max_length", "cleaning", "fraction", "limit", "overlap"}),
        )
        return ClassificationData(train, tokenizer, train.report)

    def build_model(self, data: ClassificationData) -> Any:
        task = self.task
        options: dict[str, Any] = {"place": "model.start", "num_labels": task.num_labels}
        if task.labels:
            options["id2label"] = dict(enumerate(task.labels))
            options["label2id"] = {name: number for number, name in enumerate(task.labels)}
        return self.from_encoder(HictlForSequenceClassification, **options)

    def evaluate_and_export(
        self,
        folder: RunFolder,
        trainer: XlsrTrainer,
        data: ClassificationData,
        sets: Mapping[str, Any],
        console: Console,
    ) -> Finished:
        classifier = LiveClassifier(
            model := self.save(folder, trainer, data.tokenizer),
            data.tokenizer,
            batch_size=trainer.args.per_device_eval_batch_size,
            **self.live_options(trainer),
        )
        every, protocol = [*sets["dev"], *sets["test"]], self.recipe.evaluation.protocol
        metrics = evaluate_sets(classifier, every, protocol=protocol)
        if metrics:
            console.print(results_table(metrics, title=self.recipe.name))
        hashes = {f"{one.name}/{one.split}": data_hash(one.texts()) for one in every}
        return Finished(metrics, [], hashes, model.config.hidden_size)

    def describe_data(self, report: Mapping[str, Any]) -> str:
        removed = report["cleaning"]
        gone = ", ".join(f"{step} removed {count['in'] - count['out']:,}" for step, count in removed.items())
        return (
            f"{report['pairs']:,} training rows in {', '.join(report['languages'])} ({gone}; "
            f"{sum(report['unlabelled'].values()):,} without label; {sum(report['rejected'].values()):,} bad lines), "
            f"{report['num_truncated']:,} were truncated."
        )

    def card_facts(self, report: Mapping[str, Any]) -> dict[str, str]:
        classes = ", ".join(f"{name} {count:,}" for name, count in report["labels"].items())
        return {
            "start": public_path(self.recipe.model["start"]),
            "languages of the training rows": ", ".join(report["languages"]),
            "labels": classes or self.task.allowed,
        }

    def card_use(self) -> str:
        row = '{"text": "A sentence.", "text_pair": "Another."}' if self.task.texts == "pair" else '"A sentence."'
        return (
            "import hf_xlsr  # makes the architecture known\nfrom transformers import pipeline\n\n"
            f'classify = pipeline("text-classification", model="path/to/this/folder")\nprint(classify({row}))'
        )
