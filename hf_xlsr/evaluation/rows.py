"""Rows as protocols take them: mappings from column to value, read once, with mistakes named by row."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hf_xlsr.utils.errors import XlsrError

Row = Mapping[str, Any]


class LabelledTexts(NamedTuple):
    """Rows to learn a classifier from, to choose one on, or to test it on.

    Attributes:
        sides: One list of texts, or the first and the second sentences of pairs.
        labels: Label numbers, `(n,)`, int64.
    """

    sides: tuple[list[str], ...]
    labels: np.ndarray


def read_columns(rows: Iterable[Row], *, texts: Sequence[str], values: Sequence[str] = (), name: str) -> list[Any]:
    """The columns of rows, each as a list.

    Args:
        rows: Mappings from column to value, for instance a `datasets.Dataset`.
        texts: Columns that hold a sentence in every row.
        values: Columns that hold anything.
        name: What the caller's argument is called, for the error sentences.

    Returns:
        One list for each of `texts` and `values`, in that order.

    Raises:
        XlsrError: there is no row, a row is no mapping or lacks a column, or a text is not a string.

    Example:
        >>> rows = [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
        >>> read_columns(rows, texts=["text"], values=["label"], name="train")
        [['a', 'b'], [1, 0]]
    """
    names = [*texts, *values]
    columns: list[list[Any]] = [[] for _ in names]
    number = -1
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise XlsrError(
                f"row {number} of {name} is {row!r:.40}; give mappings with the columns {', '.join(names)}."
            )
        for column, found in zip(names, columns, strict=True):
            if column not in row:
                raise XlsrError(f"row {number} of {name} has no column '{column}'; each row needs {', '.join(names)}.")
            if column in texts and not isinstance(row[column], str):
                raise XlsrError(
                    f"row {number} of {name} has {row[column]!r:.40} as its {column}; give a string or leave the row out."
                )
            found.append(row[column])
    if number < 0:
        raise XlsrError(f"{name} has no rows; give at least one.")
    return columns


def number_labels(labels: Sequence[Any], name: str) -> dict[Hashable, int]:
    """Numbers the different labels from 0, in sorted order.

    Args:
        labels: One of each row; words, numbers or a mixture.
        name: What the rows are called, for the error sentences.

    Returns:
        Label -> number.

    Raises:
        XlsrError: a label is missing or can be no label, or there is only one.

    Example:
        >>> number_labels(["sport", "money", "sport"], "train")
        {'money': 0, 'sport': 1}
    """
    for row, label in enumerate(labels):
        # NaN is what tables hold where a label is missing; it is not even equal to itself.
        if label is None or label != label or not isinstance(label, Hashable):
            raise XlsrError(f"row {row} of {name} has {label!r:.40} as its label; give a word or a number.")
    distinct = sorted(set(labels), key=lambda label: (str(type(label)), label))
    if len(distinct) < 2:
        raise XlsrError(f"{name} has one label only, {distinct[0]!r}; a classifier needs two or more.")
    return {label: number for number, label in enumerate(distinct)}


def read_labelled(
    train: Iterable[Row],
    dev: Iterable[Row],
    tests: Mapping[str, Iterable[Row]],
    *,
    texts: Sequence[str],
    clean: Callable[[Any, int, str], Hashable] | None = None,
) -> tuple[LabelledTexts, LabelledTexts, dict[str, LabelledTexts]]:
    """The rows of a classification task; the labels are those of `train`.

    All rows are read before anything is encoded: a wrong label in the last language should not cost the wait.

    Args:
        train: Rows to learn from.
        dev: Rows to choose on.
        tests: Rows to test on, by language.
        texts: Columns that hold sentences; `label` is read beside them.
        clean: From a label, its row and the name of the rows to the label that is meant.

    Returns:
        `train`, `dev` and, by language, `tests`.

    Raises:
        XlsrError: as `read_columns` and `number_labels` do, or a label is not among those of `train`.

    Example:
        >>> rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
        >>> read_labelled(rows, rows, {"fr": rows[1:]}, texts=["text"])[2]
        {'fr': LabelledTexts(sides=(['b'],), labels=array([1]))}
    """
    if not isinstance(tests, Mapping) or not tests:
        raise XlsrError(f"tests is {tests!r:.40}; give a mapping from language to rows, with at least one entry.")
    numbers: dict[Hashable, int] = {}

    def read(rows: Iterable[Row], name: str) -> LabelledTexts:
        *sides, labels = read_columns(rows, texts=texts, values=["label"], name=name)
        if clean is not None:
            labels = [clean(label, row, name) for row, label in enumerate(labels)]
        if not numbers:
            numbers.update(number_labels(labels, name))
        for row, label in enumerate(labels):
            if not isinstance(label, Hashable) or label not in numbers:
                raise XlsrError(
                    f"row {row} of {name} has label {label!r:.40}, which train does not have; "
                    f"its labels are {', '.join(map(repr, numbers))}."
                )
        return LabelledTexts(tuple(sides), np.array([numbers[label] for label in labels], np.int64))

    return (
        read(train, "train"),
        read(dev, "dev"),
        {language: read(rows, f"tests['{language}']") for language, rows in tests.items()},
    )
