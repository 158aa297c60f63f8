"""Rows, mappings from column to value: columns of them, labels, and groups by language."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from hf_xlsr.evaluation.containers import by_name, row_list
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)
Row = Mapping[str, Any]
AnyRow = TypeVar("AnyRow", bound=Row)
Item = TypeVar("Item")


class LabelledTexts(NamedTuple):
    """Texts, or first and second sentences of pairs, with label numbers, `(n,)`, int64; how many rows had no label."""

    sides: Sequence[list[str]]
    labels: np.ndarray
    dropped: int = 0


def read_columns(rows: Iterable[Row], *, texts: Sequence[str], values: Sequence[str] = (), name: str) -> list[Any]:
    """The columns of rows: one list for each of `texts`, which are strings, and of `values`; errors have `name`."""
    columns: dict[str, list[Any]] = {column: [] for column in (*texts, *values)}
    for number, row in enumerate(row_list(rows, name)):
        for column, column_values in columns.items():
            value = row.get(column)
            # Tables have NaN where a text is missing.
            if column in texts and not isinstance(value, str):
                raise XlsrError(f"Row {number} of {name} must have a string `{column}`, got {row!r:.80}.")
            column_values.append(value)
    return list(columns.values())


def read_score(score: Any, name: str, missing: float) -> float:
    """A score, also as text; `missing` for an empty one. Errors have the `name` of what is scored."""
    if score is None or not str(score).strip():
        return missing
    try:
        return float(score)
    except (TypeError, ValueError):
        raise XlsrError(f"The score of {name} must be a number such as 1.5, got {score!r:.40}.") from None


def number_labels(labels: Sequence[Any], name: str) -> dict[Hashable, int]:
    """Numbers the distinct labels, strings or numbers, from 0, in sorted order."""
    for row, label in enumerate(labels):
        # Tables have NaN where a label is missing; it is not equal to itself.
        if label is None or label != label:
            raise XlsrError(f"Row {row} of {name} has no label.")
    distinct = sorted(set(labels), key=lambda label: (str(type(label)), label))
    if len(distinct) < 2:
        raise XlsrError(f"{name} must have two or more labels, got {distinct!r:.40}.")
    return {label: number for number, label in enumerate(distinct)}


def as_numbers(labels: Sequence[Any], numbers: Mapping[Hashable, int], name: str) -> np.ndarray:
    """The numbers of labels, `(n,)`, int64; `numbers` come from `number_labels` of the training rows."""
    label_numbers = np.zeros(len(labels), np.int64)
    for row, label in enumerate(labels):
        if label not in numbers:
            raise XlsrError(f"Row {row} of {name} has label {label!r:.40}; training rows have {[*numbers]}.")
        label_numbers[row] = numbers[label]
    return label_numbers


def read_labelled(
    train: Iterable[Row],
    dev: Iterable[Row],
    tests: Mapping[str, Iterable[Row]],
    *,
    texts: Sequence[str],
    clean: Callable[[Any, int, str], Hashable | None] | None = None,
) -> tuple[LabelledTexts, LabelledTexts, dict[str, LabelledTexts]]:
    """The rows of a classification task; the labels are those of `train`, after `clean(label, row, name)`.

    Rows for whose label `clean` gives None have none: they are dropped, with a warning that counts them.

    All rows are read before anything is encoded, so that an invalid label in the last language fails early.
    """
    numbers: dict[Hashable, int] = {}

    def read(rows: Iterable[Row], name: str) -> LabelledTexts:
        *sides, labels = read_columns(rows, texts=texts, values=["label"], name=name)
        dropped = 0
        if clean is not None:
            labels = [clean(label, row, name) for row, label in enumerate(labels)]
            labelled_rows = [row for row, label in enumerate(labels) if label is not None]
            dropped = len(labels) - len(labelled_rows)
            *sides, labels = ([column[row] for row in labelled_rows] for column in (*sides, labels))
        if dropped:
            logger.warning("%s: %d of %d rows have no label and are skipped", name, dropped, dropped + len(labels))
        if dropped and not labels:
            raise XlsrError(f"{name} has no row with a label: all {dropped:,} are -, -1 or empty.")

        if name == "train":
            numbers.update(number_labels(labels, name))
        return LabelledTexts(sides, as_numbers(labels, numbers, name), dropped)

    train_texts = read(train, "train")
    dev_texts = read(dev, "dev")
    test_texts = {}
    for language, rows in by_name(tests, "tests", "language", "{'fr': rows}").items():
        test_texts[language] = read(rows, f"tests['{language}']")
    return train_texts, dev_texts, test_texts


def by_language(rows: Iterable[AnyRow]) -> dict[str, list[AnyRow]]:
    """Rows of each language, in order of first occurrence."""
    return _groups(rows, itemgetter("lang"))


def by_pair(rows: Iterable[AnyRow]) -> dict[tuple[str, str], list[AnyRow]]:
    """Rows of each language pair, in order of first occurrence."""
    return _groups(rows, itemgetter("source_lang", "target_lang"))


def by_subset(rows: Iterable[AnyRow]) -> dict[str | None, list[AnyRow]]:
    """Rows of each subset, in order of first occurrence; None for those of none."""
    return _groups(rows, lambda row: row.get("subset"))


def _groups(rows: Iterable[AnyRow], key: Callable[[AnyRow], Any]) -> dict[Any, list[AnyRow]]:
    groups: dict[Any, list[AnyRow]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(groups)


def by_pair_either_way(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows of each two languages; rows in the other order are swapped to the order of the first one."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for languages, group in by_pair(rows).items():
        if languages[::-1] in groups:
            languages = languages[::-1]
        groups[languages] += in_order(group, languages)
    return groups


def in_order(rows: Iterable[Row], languages: tuple[str, str]) -> list[Row]:
    """Rows in a language pair, swapped where they are in the other order."""
    ordered: list[Row] = []
    for row in rows:
        pair = (row["source_lang"], row["target_lang"])
        if pair == languages:
            ordered.append(row)
        elif pair[::-1] == languages:
            swapped = {
                **row,
                "source": row["target"],
                "target": row["source"],
                "source_lang": row["target_lang"],
                "target_lang": row["source_lang"],
            }
            ordered.append(swapped)
    return ordered


def both_sides(rows: Iterable[Row]) -> tuple[list[str], list[str]]:
    """The source texts and the target texts of translation pairs."""
    sources = []
    targets = []
    for row in rows:
        sources.append(row["source"])
        targets.append(row["target"])
    return sources, targets


def random_rows(rows: Sequence[Item], count: int, seed: int) -> list[Item]:
    """A random subset of rows, in their order; all when there are fewer."""
    rng = np.random.default_rng(seed)
    numbers = rng.choice(len(rows), min(count, len(rows)), replace=False)
    return [rows[number] for number in np.sort(numbers)]
