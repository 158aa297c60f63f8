"""Protocol `senteval`: SentEval's transfer tasks, linear classifiers on frozen sentence embeddings."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.data.columns import split_name
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed
from hf_xlsr.evaluation.containers import by_name
from hf_xlsr.evaluation.outcomes import Outcomes
from hf_xlsr.evaluation.pairs import embed_pairs
from hf_xlsr.evaluation.protocol import Options, Protocol, option
from hf_xlsr.evaluation.reading import TaskInputs, read_tasks
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.evaluation.rows import Row, as_numbers, number_labels, read_columns
from hf_xlsr.utils.errors import XlsrError, did_you_mean

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

MAX_SCORE = 5
# Ways to test, named after the methods of `Classification` and `relatedness`, and the splits that they read.
SPLITS: dict[str, tuple[str, ...]] = {
    "nested": ("test",),
    "train_folds": ("train", "test"),
    "fixed_dev": ("train", "dev", "test"),
    "relatedness": ("train", "dev", "test"),
}


@dataclass(frozen=True)
class TaskSpec:
    """How a task is tested: by which of `SPLITS`, on pairs or texts, and whether F1 of the greater label is reported."""

    test: str
    pairs: bool = False
    f1: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        return ("sentence1", "sentence2") if self.pairs else ("text",)

    @property
    def columns(self) -> tuple[str, ...]:
        answer = "score" if self.test == "relatedness" else "label"
        if self.test == "nested":
            return (*self.texts, answer)
        return (*self.texts, answer, "split")


TASKS: dict[str, TaskSpec] = {
    **dict.fromkeys(("MR", "CR", "SUBJ", "MPQA"), TaskSpec("nested")),
    **dict.fromkeys(("SST2", "SST5"), TaskSpec("fixed_dev")),
    "TREC": TaskSpec("train_folds"),
    "MRPC": TaskSpec("train_folds", pairs=True, f1=True),
    "SICK-E": TaskSpec("fixed_dev", pairs=True),
    **dict.fromkeys(("SICK-R", "STS-B"), TaskSpec("relatedness", pairs=True)),
}


def senteval(
    encoder: Encoder,
    tasks: Mapping[str, Iterable[Row]],
    *,
    language: str = "en",
    device: str | None = None,
    seed: int = 1111,
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """SentEval's transfer tasks: a classifier on frozen embeddings, trained and tested as the toolkit does.

    The classifier is one linear layer with softmax cross-entropy, its weight decay one of 1e-5, 1e-4, 1e-3, 1e-2. It
    trains (10 folds, Adam, batches of 64, as papers report) until its dev accuracy has failed to rise six times in all,
    and the best check is kept. The features of a pair are `[|u - v|, u * v]`. Embeddings are not normalised. White space
    in texts is reduced to single spaces, and rows are sorted by their numbers of words and their label, as in SentEval:
    folds and batches depend on the order.

    Args:
        tasks: Rows by the task's name, one of `TASKS`, with its `columns`. A suffix after a dot may be chosen freely
            (`MR.de`, the same task in another language).
        device: Where classifiers are trained; by default an accelerator if there is one.
        seed: Of the classifiers' weights and batches.

    Returns:
        - `accuracy` under `MR-senteval/en/test/`, for MRPC `f1` too, and the number of tested `sentences` or `pairs`;
          `accuracy` of the chosen weight decay, on what it was chosen on, under `MR-senteval/en/dev/`.
        - SICK-R and STS-B: `pearson`, `spearman` and `mse` (of the score) in place of the accuracy; `pearson` on dev.
        - Of two accuracies or more, the mean, under a name with their number: `senteval-average-of-5/en/test/`.

    Relations:
        SentEval (Conneau and Kiela, 2018) with PyTorch, `nhid` 0 and these settings gives the same numbers up to
        rounding, with two exceptions. Labels are numbered in sorted order, which differs from SentEval's for SICK-E. And
        the mean over outer folds is taken of accuracies that are not rounded first.
    """
    import torch

    from hf_xlsr.utils.devices import resolve_device

    torch_device = torch.device("cpu")
    if device:
        torch_device = resolve_device(device)
    elif torch.accelerator.is_available():
        torch_device = torch.accelerator.current_accelerator() or torch_device
    # All rows are read before anything is encoded: a wrong label in the last task should not cost the wait.
    named_tasks = by_name(tasks, "tasks", "task", "{'MR': rows}")
    loaded_tasks = {name: _read_task(rows, name) for name, rows in named_tasks.items()}

    results = Results()
    accuracies = []
    for name, task in loaded_tasks.items():
        features = _features(encoder, task, language, encoding)
        tested, dev, outcomes = _measure(task, features, seed, torch_device)
        logger.info("%s: %s", name, tested)
        if "accuracy" in tested:
            accuracies.append(tested["accuracy"])

        tested["pairs" if task.spec.pairs else "sentences"] = len(task.splits["test"])
        results |= measured(name, "senteval", language, "test", tested, outcomes)
        results |= measured(name, "senteval", language, "dev", dev)

    if len(accuracies) > 1:
        average = f"average-of-{len(accuracies)}"
        results |= measured(average, "senteval", language, "test", {"accuracy": np.mean(accuracies)})
    return results


class _Task(NamedTuple):
    """The texts of a task, its label numbers or scores, `(rows,)`, and its rows by split, in SentEval's order."""

    spec: TaskSpec
    sides: list[list[str]]
    gold: np.ndarray
    splits: dict[str, np.ndarray]


def _read_task(rows: Iterable[Row], name: str) -> _Task:
    """Reads and checks the rows of a task."""
    kind = name.partition(".")[0]
    if kind not in TASKS:
        raise XlsrError(f"`tasks` must be rows by the name of a task, got '{name}'; {did_you_mean(kind, TASKS)}")

    spec = TASKS[kind]
    table = f"tasks['{name}']"
    text_count = len(spec.texts)
    columns = read_columns(rows, texts=spec.texts, values=spec.columns[text_count:], name=table)
    answers = columns[text_count]

    splits = _splits(spec, columns[-1], table)
    gold = _scores(answers, table) if spec.test == "relatedness" else _labels(answers, splits, table)

    sides = []
    keys = [gold]
    for texts in columns[:text_count]:
        words = list(map(str.split, texts))
        sides.append(list(map(" ".join, words)))
        keys.insert(1, np.array(list(map(len, words))))

    for split, members in splits.items():
        order = np.lexsort([key[members] for key in keys])  # by the last key first
        splits[split] = members[order]
    return _Task(spec, sides, gold, splits)


def _splits(spec: TaskSpec, names: Sequence[Any], table: str) -> dict[str, np.ndarray]:
    """The rows of each split that the task is tested on."""
    if spec.test == "nested":
        return {"test": np.arange(len(names))}

    expected = SPLITS[spec.test]
    splits = np.array(list(map(split_name, names)), object)
    if spec.test == "train_folds":
        splits[splits == "dev"] = "train"
    if set(splits) != set(expected):
        raise XlsrError(f"{table} must have rows of the splits {', '.join(expected)}, got {set(splits)}.")
    return {split: np.flatnonzero(splits == split) for split in expected}


def _labels(answers: Sequence[Any], splits: dict[str, np.ndarray], table: str) -> np.ndarray:
    """The numbers of the labels, of which all must be in the training rows."""
    train_labels = [answers[row] for row in splits.get("train", splits["test"])]
    numbers = number_labels(train_labels, f"the training rows of {table}")
    return as_numbers(answers, numbers, table)


def _scores(answers: Sequence[Any], table: str) -> np.ndarray:
    scores = np.array(answers, np.float64)
    for row, score in enumerate(scores):
        if not 0 <= score <= MAX_SCORE:
            raise XlsrError(f"Row {row} of {table} must have a score from 0 to {MAX_SCORE}, got {score}.")
    return scores


def _features(encoder: Encoder, task: _Task, language: str, encoding: EncodingOptions) -> np.ndarray:
    """The input of the classifiers: vectors of texts, or `[|u - v|, u * v]` of pairs."""
    if not task.spec.pairs:
        return embed(
            encoder,
            task.sides[0],
            language=language,
            normalize=False,
            **encoding,
        )
    u, v = embed_pairs(encoder, task.sides, (language, language), normalize=False, **encoding)
    return np.concatenate([np.abs(u - v), u * v], axis=1)


def _measure(
    task: _Task, features: np.ndarray, seed: int, device: torch.device
) -> tuple[dict[str, float], dict[str, float], dict[str, Outcomes]]:
    """Trains and tests the classifiers of a task: metrics on the tested rows, those that chose on dev, and outcomes."""
    from hf_xlsr.evaluation.senteval_classifiers import FOLDS, SCHEDULE, Classification, relatedness

    splits = task.splits.values()
    gold = task.gold[task.splits["test"]]
    outcomes = {}
    if task.spec.test == "relatedness":
        dev_pearson, tested, scores = relatedness(features, task.gold, *splits, seed=seed, device=device)
        for correlation in ("pearson", "spearman"):
            outcomes[correlation] = Outcomes(correlation, (scores, gold))
        outcomes["mse"] = Outcomes("unbounded_mean", ((scores - gold) ** 2,))
        return tested, {"pearson": dev_pearson}, outcomes

    classification = Classification(features, task.gold, schedule=SCHEDULE, folds=FOLDS, seed=seed, device=device)
    test = getattr(classification, task.spec.test)
    outcome = test(*splits)
    tested = {"accuracy": outcome.test}
    outcomes["accuracy"] = Outcomes("mean", (outcome.predicted == gold,))
    if task.spec.f1:
        outcomes["f1"] = Outcomes("f1", (outcome.predicted == 1, gold == 1))
        tested["f1"] = outcomes["f1"].value()
    return tested, {"accuracy": outcome.dev}, outcomes


@dataclass(frozen=True)
class SentevalOptions(Options):
    seed: int = option(1111, "seed of everything random (default: senteval 1111, nli 159753, as published; else 1)")
    device: str | None = option(None, "device of the encoder and of classifiers")


def _run(encoder: Encoder, inputs: TaskInputs, options: SentevalOptions) -> Results:
    results = Results()
    for language, tasks in inputs.tasks_by_language.items():
        results |= senteval(
            encoder,
            tasks,
            language=language,
            **options.arguments(),
            **inputs.encoding,
        )
    return results


PROTOCOLS = (
    Protocol(
        "senteval",
        "accuracy of SentEval's classifiers on frozen vectors",
        "a table for each task with text or sentence1, sentence2; label or score; and split",
        read_tasks,
        _run,
        SentevalOptions,
        required=("text", "label"),
        optional=("lang", "split"),
        tasks={name: spec.columns for name, spec in TASKS.items()},
        headlines=("accuracy", "spearman"),
    ),
)
