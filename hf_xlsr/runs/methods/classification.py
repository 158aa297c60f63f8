"""Fine-tuning for classification in recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hf_xlsr.data.held_out import held_out_texts
from hf_xlsr.data.labelled import OVERLAPS, TEXTS, LabelledSet, LabelledTask, prepare_labelled, read_sets, row_text
from hf_xlsr.data.prepare import load_tokenizer
from hf_xlsr.data.prepared import PreparedRows
from hf_xlsr.data.sources import as_list, expand
from hf_xlsr.evaluation.report import MEAN, metric_prefix, metric_unit, metric_value, split_key
from hf_xlsr.export.card_values import public_path
from hf_xlsr.modeling.hictl.configuration_hictl import HictlConfig
from hf_xlsr.modeling.hictl.modeling_classification import HictlForSequenceClassification, encoder_folder
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.methods.base import ADAPTERS_SECTION, DROPOUT, START, Evaluations, Finished, Method, own_keys
from hf_xlsr.runs.methods.hictl import HICTL_CITATION, HICTL_PAPER
from hf_xlsr.runs.recipe_keys import Key
from hf_xlsr.trainers.adapters import merged
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.fine_tune import (
    FineTuneTrainer,
    FineTuneTrainingArguments,
    LiveClassifier,
    evaluate_sets,
    metric_keys,
)
from hf_xlsr.utils.errors import XlsrError, error_line
from hf_xlsr.utils.hashing import data_hash


@dataclass
class ClassificationData:
    """What a run trains on.

    Args:
        train: Tokenised rows.
        tokenizer: Of the encoder.
        report: Counts of `train`.
    """

    train: PreparedRows
    tokenizer: Any
    report: dict[str, Any]


class ClassificationMethod(Method):
    """`method: classification`. `model.start` names an encoder, a HICTL model or a run; `task` says what rows hold."""

    name = "classification"
    paper, citation = HICTL_PAPER, HICTL_CITATION
    config_class = HictlConfig
    arguments_class = FineTuneTrainingArguments
    trainer_class = FineTuneTrainer
    sections: ClassVar[dict[str, dict[str, Any]]] = {
        "data": {
            "cleaning": [],
            "max_length": 128,
            "overlap": Key("text", "what of dev and test is not trained on: a text, or a row", choices=OVERLAPS),
        },
        "task": {
            "texts": Key("pair", "what a row holds", choices=tuple(TEXTS)),
            "labels": Key(None, "names of the classes, in the order of their numbers", ("list", "str")),
            "scores": Key(None, "smallest and largest score, of a task that has no classes", ("list",)),
            "metrics": Key(None, "what is measured; what suits the task when absent", ("list", "str")),
        },
        "evaluation": {"protocol": Key("fine-tuning", "what metric keys call the way the model was trained")},
        "adapters": ADAPTERS_SECTION,
    }
    min_languages = 1
    card_tags = ("text-classification", "cross-lingual")
    pipeline_tag = "text-classification"

    def model_keys(self, recipe: Mapping[str, Any]) -> dict[str, dict[str, Key]]:
        own = own_keys(HictlConfig)
        return {
            "model": {"start": START, "dropout": DROPOUT, "classifier_dropout": own["classifier_dropout"]},
        }

    def validate(self, recipe: dict[str, Any]) -> None:
        if not isinstance(recipe["model"].get("start"), str):
            raise XlsrError(
                f"recipe '{recipe['name']}' has no model.start; name an encoder, a HICTL model or the folder of a run."
            )
        protocol = recipe["evaluation"]["protocol"]
        try:
            if not isinstance(protocol, str) or not protocol or "/" in protocol:
                raise XlsrError(
                    f"evaluation.protocol is {protocol!r}; name how the model was trained, without a slash."
                )
            self.task(recipe)
            for split in ("dev", "test"):
                for name in recipe["data"][split] or ():
                    metric_prefix(str(name), protocol, "en", split)
        except XlsrError as error:
            raise XlsrError(f"recipe '{recipe['name']}': {error}") from None

    @staticmethod
    def task(recipe: Mapping[str, Any]) -> LabelledTask:
        """What the rows of a recipe hold."""
        task = recipe["task"]
        scores = None if task["scores"] is None else tuple(as_list(task["scores"]))
        labels, metrics = (tuple(map(str, as_list(task[key]))) for key in ("labels", "metrics"))
        return LabelledTask(texts=task["texts"], labels=labels, scores=scores, metrics=metrics)

    def sources(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        data = recipe.get("data") or {}
        places = {f"data.{part}": data.get(part) for part in ("train", "held_out")}
        for split in ("dev", "test"):
            sets = data.get(split)
            if isinstance(sets, Mapping) and "path" not in sets:
                places |= {f"data.{split}.{name}": sources for name, sources in sets.items()}
        return places

    def evaluation_sets(self, recipe: Mapping[str, Any]) -> dict[str, list[LabelledSet]]:
        task, languages = self.task(recipe), recipe["languages"]
        return {
            split: read_sets(recipe["data"][split], task, languages=languages, split=split, seed=recipe["seed"])
            for split in ("dev", "test")
        }

    def evaluation_texts(self, recipe: Mapping[str, Any], sets: Mapping[str, Any]) -> Iterator[str]:
        whole_rows = recipe["data"]["overlap"] == "row"
        for data in [*sets["dev"], *sets["test"]]:
            for row in data.rows:
                texts = [row[name] for name in data.task.columns]
                # A pair is the same pair the other way round.
                both = (
                    row_text(dict(zip(("first", "second"), order, strict=False))) for order in (texts, texts[::-1])
                )
                yield from both if whole_rows else texts
        yield from held_out_texts(as_list(recipe["data"]["held_out"]), languages=recipe["languages"])

    def evaluations(self, recipe: Mapping[str, Any], sets: Mapping[str, Any]) -> Evaluations:
        if not sets["dev"]:
            return []
        return [partial(evaluate_sets, sets=sets["dev"], protocol=recipe["evaluation"]["protocol"])]

    def metric_names(self, recipe: Mapping[str, Any], sets: Mapping[str, Any]) -> list[str]:
        return metric_keys(sets["dev"], protocol=recipe["evaluation"]["protocol"])

    def prepare(self, recipe: Mapping[str, Any], folder: Path, evaluation_texts: Iterator[str]) -> ClassificationData:
        data = recipe["data"]
        tokenizer = load_tokenizer(encoder_folder(expand(recipe["model"]["start"])), "model.start")
        train = prepare_labelled(
            data["train"],
            task=self.task(recipe),
            languages=recipe["languages"],
            tokenizer=tokenizer,
            folder=folder,
            evaluation_texts=evaluation_texts,
            seed=recipe["seed"],
            **{key: data[key] for key in ("max_length", "cleaning", "fraction", "limit", "overlap")},
        )
        return ClassificationData(train, tokenizer, train.report)

    def build_model(self, recipe: Mapping[str, Any], data: ClassificationData) -> Any:
        """The model that a recipe describes; with adapters, in a PEFT wrapper.

        Raises:
            XlsrError: the encoder does not load, or a value does not fit.
        """
        task, options = self.task(recipe), dict(recipe["model"])
        if task.labels:
            options["id2label"] = dict(enumerate(task.labels))
            options["label2id"] = {name: number for number, name in enumerate(task.labels)}
        try:
            model = HictlForSequenceClassification.from_encoder(
                expand(options.pop("start")),
                place="model.start",
                num_labels=task.num_labels,
                **options,
            )
        except (TypeError, ValueError) as error:
            raise XlsrError(f"recipe '{recipe['name']}', model: {error_line(error)}") from None
        return self.initialize(recipe, model)

    def evaluate_and_export(
        self,
        recipe: Mapping[str, Any],
        folder: RunFolder,
        trainer: XlsrTrainer,
        data: ClassificationData,
        sets: Mapping[str, Any],
        console: Console,
    ) -> Finished:
        model = merged(trainer.accelerator.unwrap_model(trainer.model))
        model.save_pretrained(folder.model)
        data.tokenizer.save_pretrained(str(folder.model))
        # As in training: on a processor bfloat16 rounds otherwise under another implementation.
        attention = {"attn_implementation": model.config._attn_implementation}
        loaded = HictlForSequenceClassification.from_pretrained(folder.model, **attention).to(trainer.args.device)
        classifier = LiveClassifier(
            loaded,
            data.tokenizer,
            max_length=recipe["data"]["max_length"],
            batch_size=trainer.args.per_device_eval_batch_size,
            autocast_dtype=trainer.autocast_dtype,
            progress=not trainer.args.disable_tqdm,
        )
        every, protocol = [*sets["dev"], *sets["test"]], recipe["evaluation"]["protocol"]
        metrics = evaluate_sets(classifier, every, protocol=protocol)
        if metrics:
            console.print(language_table(metrics, title=str(recipe["name"]), protocol=protocol))
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

    def card_facts(self, recipe: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, str]:
        task = self.task(recipe)
        classes = ", ".join(f"{name} {count:,}" for name, count in report["labels"].items())
        return {
            "start": public_path(recipe["model"]["start"]),
            "languages of the training rows": ", ".join(report["languages"]),
            "labels": classes or task.allowed,
        }

    def card_use(self, recipe: Mapping[str, Any]) -> str:
        row = (
            '{"text": "A sentence.", "text_pair": "Another."}'
            if self.task(recipe).texts == "pair"
            else '"A sentence."'
        )
        return (
            "import hf_xlsr  # makes the architecture known\nfrom transformers import pipeline\n\n"
            f'classify = pipeline("text-classification", model="path/to/this/folder")\nprint(classify({row}))'
        )


def language_table(metrics: Mapping[str, float], *, title: str, protocol: str) -> Table:
    """Metrics with a line for each language and one for their average: table 2 of the paper, turned to fit a terminal.

    Args:
        metrics: From `evaluate_sets`; counts of rows are left out.
        title: Stands above the table, with the protocol.
        protocol: That of the keys.

    Returns:
        The table, to be printed by `rich.console.Console`.
    """
    lines: dict[str, dict[str, str]] = {}
    average: dict[str, str] = {}
    for key, value in metrics.items():
        name, language, split, metric = split_key(key)
        if not isinstance(value, int):
            line = average if MEAN.fullmatch(language) else lines.setdefault(language, {})
            heading = f"{name.removesuffix(f'-{protocol}')} {split}\n{metric} {metric_unit(metric)}".rstrip()
            line[heading] = metric_value(metric, value)
    headings = list(dict.fromkeys(heading for line in lines.values() for heading in line))
    table = Table(title=escape(f"{title}: {protocol}"))
    table.add_column("language")
    for heading in headings:
        table.add_column(Text(heading), justify="right", overflow="fold")
    for language, line in lines.items():
        table.add_row(language, *(line.get(heading, "") for heading in headings))
    if average:
        table.add_section()
        table.add_row("avg", *(average.get(heading, "") for heading in headings))
    return table
