"""The tasks of protocol `senteval`: how each is tested, and its rows in SentEval's order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from hf_xlsr.data.columns import split_name
from hf_xlsr.evaluation.rows import Row, as_numbers, number_labels, read_columns
from hf_xlsr.utils.errors import XlsrError

MAX_SCORE = 5


@dataclass(frozen=True)
class TaskSpec:
    """How a task is tested.

    `nested` folds of all rows; `folds` of the training rows and one test; a `fixed` dev split and one test; or
    `relatedness`, the prediction of a score. With `f1` that of the greater label is reported too.
    """

    test: Literal["nested", "folds", "fixed", "relatedness"]
    pairs: bool = False
    f1: bool = False

    @property
    def splits(self) -> tuple[str, ...]:
        if self.test == "nested":
            return ("test",)
        return ("train", "test") if self.test == "folds" else ("train", "dev", "test")

    @property
    def texts(self) -> tuple[str, ...]:
        return ("sentence1", "sentence2") if self.pairs else ("text",)

    @property
    def columns(self) -> tuple[str, ...]:
        answer = "score" if self.test == "relatedness" else "label"
        return (*self.texts, answer, *(() if self.test == "nested" else ("split",)))


TASKS: dict[str, TaskSpec] = {
    **dict.fromkeys(("MR", "CR", "SUBJ", "MPQA"), TaskSpec("nested")),
    **dict.fromkeys(("SST2", "SST5"), TaskSpec("fixed")),
    "TREC": TaskSpec("folds"),
    "MRPC": TaskSpec("folds", pairs=True, f1=True),
    "SICK-E": TaskSpec("fixed", pairs=True),
    **dict.fromkeys(("SICK-R", "STS-B"), TaskSpec("relatedness", pairs=True)),
}


class Task(NamedTuple):
    """The texts of a task, its label numbers or scores, `(rows,)`, and its rows by split, in SentEval's order."""

    spec: TaskSpec
    sides: list[list[str]]
    gold: np.ndarray
    splits: dict[str, np.ndarray]


def read_task(rows: Iterable[Row], name: str) -> Task:
    """Reads and checks the rows of a task.

    Examples:
        >>> rows = [{"text": "good film", "label": 1}, {"text": "bad", "label": 0}] * 4
        >>> task = read_task(rows, "MR")
        >>> task.splits["test"].tolist(), task.gold.tolist()
        ([1, 3, 5, 7, 0, 2, 4, 6], [1, 0, 1, 0, 1, 0, 1, 0])
    """
    spec, place = TASKS[name.partition(".")[0]], f"tasks['{name}']"
    values = spec.columns[len(spec.texts) :]
    columns = read_columns(rows, texts=spec.texts, values=values, name=place)
    sides = [[" ".join(text.split()) for text in side] for side in columns[: len(spec.texts)]]
    answers = columns[len(spec.texts)]
    splits = _splits(spec, columns[-1], place)
    gold = _scores(answers, place) if spec.test == "relatedness" else _labels(spec, answers, splits, place)
    words = [np.array([len(text.split()) for text in side]) for side in sides]
    for split, members in splits.items():
        keys = [column[members] for column in (*words, gold)]
        splits[split] = members[np.lexsort(keys[::-1])]  # the last key of lexsort comes first
    return Task(spec, sides, gold, splits)


def _splits(spec: TaskSpec, names: Sequence[Any], place: str) -> dict[str, np.ndarray]:
    if spec.test == "nested":
        return {"test": np.arange(len(names))}
    plain = [split_name(name) for name in names]
    if spec.test == "folds":
        plain = ["train" if name == "dev" else name for name in plain]
    if set(plain) != set(spec.splits):
        raise XlsrError(
            f"{place} must have rows of the splits {', '.join(spec.splits)}, got {', '.join(sorted(set(plain)))}."
        )
    return {split: np.flatnonzero(np.array(plain) == split) for split in spec.splits}


def _labels(spec: TaskSpec, answers: Sequence[Any], splits: dict[str, np.ndarray], place: str) -> np.ndarray:
    learnt = [answers[row] for row in splits.get("train", splits["test"])]
    numbers = number_labels(learnt, place if spec.test == "nested" else f"the train rows of {place}")
    if spec.f1 and len(numbers) != 2:
        raise XlsrError(f"{place} must have two labels for its F1, got {', '.join(map(repr, numbers))}.")
    return as_numbers(answers, numbers, place)


def _scores(answers: Sequence[Any], place: str) -> np.ndarray:
    scores = np.full(len(answers), np.nan)
    for row, value in enumerate(answers):
        try:
            scores[row] = float(value)
        except (TypeError, ValueError):
            pass
        if not 0 <= scores[row] <= MAX_SCORE:
            raise XlsrError(f"Row {row} of {place} must have a score from 0 to {MAX_SCORE}, got {value!r:.40}.")
    return scores
