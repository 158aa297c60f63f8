"""The tasks of protocol `senteval`: how each is tested, and its rows, checked and in SentEval's order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from hf_xlsr.data.columns import split_name
from hf_xlsr.evaluation.rows import Row, number_labels, read_columns
from hf_xlsr.utils.errors import XlsrError

BEST_SCORE = 5


@dataclass(frozen=True)
class Kind:
    """How a task is tested.

    Attributes:
        test: `nested` folds of all rows; `folds` of the training rows and one test; a `fixed` dev split and one test;
            or `relatedness`, a score to be learnt.
        pairs: Whether a row has two sentences.
        f1: Whether F1 of the greater label is reported too.
    """

    test: Literal["nested", "folds", "fixed", "relatedness"]
    pairs: bool = False
    f1: bool = False

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits that the rows are parted into."""
        if self.test == "nested":
            return ("test",)
        return ("train", "test") if self.test == "folds" else ("train", "dev", "test")


TASKS: dict[str, Kind] = {
    **dict.fromkeys(("MR", "CR", "SUBJ", "MPQA"), Kind("nested")),
    **dict.fromkeys(("SST2", "SST5"), Kind("fixed")),
    "TREC": Kind("folds"),
    "MRPC": Kind("folds", pairs=True, f1=True),
    "SICK-E": Kind("fixed", pairs=True),
    **dict.fromkeys(("SICK-R", "STS-B"), Kind("relatedness", pairs=True)),
}


class Task(NamedTuple):
    """The rows of a task.

    Attributes:
        kind: How it is tested.
        sides: The texts; of pairs, the first and the second sentences.
        gold: Label numbers or scores, `(rows,)`.
        splits: Rows by split, sorted by their numbers of words and their label or score; `nested` has `test` only.
    """

    kind: Kind
    sides: list[list[str]]
    gold: np.ndarray
    splits: dict[str, np.ndarray]


def task_kind(name: str) -> Kind:
    """How a task of this name is tested: what stands in front of a dot decides.

    Raises:
        XlsrError: the name is unknown.

    Example:
        >>> task_kind("MR.de").test, task_kind("STS-B").test
        ('nested', 'relatedness')
    """
    front = name.partition(".")[0]
    if front not in TASKS:
        raise XlsrError(
            f"task '{name}' is unknown; known are {', '.join(TASKS)}, and a name of your own goes behind a dot, such as "
            "MR.de."
        )
    return TASKS[front]


def read_task(rows: Iterable[Row], name: str, folds: int) -> Task:
    """Reads and checks the rows of a task.

    Args:
        rows: With the columns that its kind needs (see `senteval`).
        name: The task's name.
        folds: Of cross-validation, for which each label needs enough rows.

    Raises:
        XlsrError: the task is unknown, or something is wrong with the rows.

    Example:
        >>> rows = [{"text": "good film", "label": 1}, {"text": "bad", "label": 0}] * 4
        >>> task = read_task(rows, "MR", folds=2)
        >>> task.splits["test"].tolist(), task.gold.tolist()
        ([1, 3, 5, 7, 0, 2, 4, 6], [1, 0, 1, 0, 1, 0, 1, 0])
    """
    kind, place = task_kind(name), f"tasks['{name}']"
    texts = ["sentence1", "sentence2"] if kind.pairs else ["text"]
    answer = "score" if kind.test == "relatedness" else "label"
    values = [answer] if kind.test == "nested" else [answer, "split"]
    columns = read_columns(rows, texts=texts, values=values, name=place)
    sides = [[" ".join(text.split()) for text in side] for side in columns[: len(texts)]]
    for column, side in zip(texts, sides, strict=True):
        if "" in side:
            raise XlsrError(f"row {side.index('')} of {place} has an empty {column}; leave the row out.")
    answers = columns[len(texts)]
    splits = _splits(kind, columns[-1], place)
    gold = _scores(answers, splits, place) if answer == "score" else _labels(kind, answers, splits, folds, place)
    words = [np.array([len(text.split()) for text in side]) for side in sides]
    for split, members in splits.items():
        keys = [column[members] for column in (*words, gold)]
        splits[split] = members[np.lexsort(keys[::-1])]  # the last key of lexsort comes first
    return Task(kind, sides, gold, splits)


def _splits(kind: Kind, names: Sequence[Any], place: str) -> dict[str, np.ndarray]:
    """Rows by split, those that the kind has."""
    if kind.test == "nested":
        return {"test": np.arange(len(names))}
    plain = [split_name(name) for name in names]
    for row, name in enumerate(plain):
        if name not in ("train", "dev", "test"):
            raise XlsrError(f"row {row} of {place} has {names[row]!r:.40} as its split; give train, dev or test.")
    if kind.test == "folds":
        plain = ["train" if name == "dev" else name for name in plain]
    for split in kind.splits:
        if split not in plain:
            called = "'dev' (or 'val', 'validation', 'trial')" if split == "dev" else f"'{split}'"
            raise XlsrError(f"{place} has no row of split {called}, which this task needs; add such rows.")
    return {split: np.flatnonzero(np.array(plain) == split) for split in kind.splits}


def _labels(kind: Kind, answers: Sequence[Any], splits: dict[str, np.ndarray], folds: int, place: str) -> np.ndarray:
    """Label numbers, once it is known that the folds can be made."""
    learnt = [answers[row] for row in splits.get("train", splits["test"])]
    numbers = number_labels(learnt, place if kind.test == "nested" else f"the train rows of {place}")
    if kind.f1 and len(numbers) != 2:
        raise XlsrError(f"{place} has {len(numbers)} labels; its F1 is of the greater of two, so give it two.")
    if kind.test != "fixed":
        # One or two rows are in the outer fold that is tested; the others have to fill the inner folds.
        needed = folds + 2 if kind.test == "nested" else folds
        for label in numbers:
            count = learnt.count(label)
            if count < needed:
                raise XlsrError(
                    f"label {label!r} of {place} has {count} row(s) to learn from; {folds} "
                    f"{'nested ' if kind.test == 'nested' else ''}folds need {needed} of each label."
                )
    for row, label in enumerate(answers):
        if not isinstance(label, Hashable) or label not in numbers:
            raise XlsrError(
                f"row {row} of {place} has label {label!r:.40}, which its train rows do not have; theirs are "
                f"{', '.join(map(repr, numbers))}."
            )
    return np.array([numbers[label] for label in answers], np.int64)


def _scores(answers: Sequence[Any], splits: dict[str, np.ndarray], place: str) -> np.ndarray:
    scores = np.full(len(answers), np.nan)
    for row, value in enumerate(answers):
        try:
            scores[row] = float(value)
        except (TypeError, ValueError):
            pass
        if not 0 <= scores[row] <= BEST_SCORE:
            raise XlsrError(
                f"row {row} of {place} has {value!r:.40} as its score; give a number from 0 to {BEST_SCORE}."
            )
    for split in ("dev", "test"):
        if not np.ptp(scores[splits[split]]) > 0:
            raise XlsrError(
                f"the {split} rows of {place} all have the same score; a correlation needs different ones."
            )
    return scores
