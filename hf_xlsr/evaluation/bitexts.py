"""Bitexts with hidden translations: the files of the BUCC shared task, and tests built from parallel rows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hf_xlsr.data.formats.lines import BadLine, BrokenFile, decode, iter_lines, open_binary
from hf_xlsr.evaluation.containers import row_list
from hf_xlsr.utils.errors import XlsrError


@dataclass(frozen=True)
class BuccData:
    """Sentences of two languages with distinct ids, some of which are hidden translations: `gold` has their ids.

    Examples:
        >>> BuccData(["a1"], ["Hello."], ["b1", "b2"], ["Au revoir.", "Bonjour."], frozenset({("a1", "b2")})).targets
        ['Au revoir.', 'Bonjour.']
    """

    source_ids: Sequence[str]
    sources: Sequence[str]
    target_ids: Sequence[str]
    targets: Sequence[str]
    gold: frozenset[tuple[str, str]]

    def __post_init__(self) -> None:
        if not self.gold:
            raise XlsrError("`gold` must have one or more pairs, got none.")
        gold_sources, gold_targets = zip(*self.gold, strict=True)
        _check_ids("source_ids", self.source_ids, self.sources, gold_sources)
        _check_ids("target_ids", self.target_ids, self.targets, gold_targets)

    @property
    def texts(self) -> list[str]:
        """All that affects the metrics, for a hash."""
        gold_ids = chain.from_iterable(sorted(self.gold))
        return [*self.source_ids, *self.sources, *self.target_ids, *self.targets, *gold_ids]


def _check_ids(name: str, ids: Sequence[str], texts: Sequence[str], gold: Iterable[str]) -> None:
    if len(ids) != len(texts):
        raise XlsrError(f"`{name}` must be one for each of {len(texts):,} sentences, got {len(ids):,}.")
    counts = Counter(ids)
    repeated = next((text_id for text_id, count in counts.items() if count > 1), None)
    if repeated is not None:
        raise XlsrError(
            f"`{name}` has the id '{repeated}' {counts[repeated]} times. Give each sentence an id of its own."
        )
    missing = sorted(set(gold) - counts.keys())
    if missing:
        names = ", ".join(map(repr, missing[:3]))
        raise XlsrError(
            f"`{name}` lacks {len(missing):,} ids of `gold`, such as {names}. Give the files of one bitext."
        )


def read_bucc(
    source_file: str | os.PathLike[str], target_file: str | os.PathLike[str], gold_file: str | os.PathLike[str]
) -> BuccData:
    """Reads the shared task's files: a line is id, tab, text; a gold line two ids with a tab between.

    Either side's id may come first in the gold file. Space around ids and texts is removed. Files may be compressed
    (`.gz`, `.bz2`, `.xz`, `.zst`, `.lz4`).
    """
    source_ids, sources = _read_columns(Path(source_file))
    target_ids, targets = _read_columns(Path(target_file))
    gold_columns = _read_columns(Path(gold_file))

    first_ids = set(gold_columns[0])
    if len(first_ids.intersection(source_ids)) < len(first_ids.intersection(target_ids)):
        gold_columns = gold_columns[::-1]
    gold = frozenset(zip(*gold_columns, strict=True))
    try:
        return BuccData(source_ids, sources, target_ids, targets, gold)
    except XlsrError as error:
        raise XlsrError(f"{source_file}, {target_file} and {gold_file}: {error}") from None


def _read_columns(path: Path) -> tuple[list[str], list[str]]:
    """The texts before and after the first tab of each line."""
    first_column: list[str] = []
    second_column: list[str] = []
    num_blank = 0
    try:
        with open_binary(path) as file:
            for line in iter_lines(file):
                if not line.strip():  # allowed at the end
                    num_blank += 1
                    continue

                first, _, second = decode(line).partition("\t")
                if num_blank or not second.strip():
                    raise BadLine("the next one must be an id, a tab and a text")
                first_column.append(first.strip())
                second_column.append(second.strip())
    except (BrokenFile, BadLine) as error:
        raise XlsrError(f"Cannot read {path} after {len(first_column)} lines: {error}.") from error
    return first_column, second_column


def hide_pairs(rows: Iterable[Mapping[str, Any]], *, share: float, seed: int = 1) -> BuccData:
    """A BUCC-like test from parallel rows: some keep both sides, each other row keeps only one.

    A text that occurs in several rows would give unmarked translations. Of rows connected by equal sources or equal
    targets therefore only the first is kept.

    Args:
        rows: Parallel sentences, `{"source": ..., "target": ...}`.
        share: Share of the rows that keep both sides, above 0 and at most 1; one row at least. Half of the others keep
            the source, half the target.
        seed: Of the choice, and of the order on each side.

    Examples:
        >>> data = hide_pairs([{"source": f"s{n}", "target": f"t{n}"} for n in range(10)], share=0.2)
        >>> len(data.sources), len(data.targets), len(data.gold)
        (6, 6, 2)
    """
    pairs = [(row["source"], row["target"]) for row in row_list(rows, "rows")]
    return hidden_bitext(independent_pairs(pairs), share, seed)


def hidden_bitext(pairs: Sequence[tuple[str, str]], share: float, seed: int) -> BuccData:
    """`hide_pairs` of translation pairs without a common text."""
    if not 0 < share <= 1:
        raise XlsrError(f"The share of hidden pairs (--hide-pairs) must be above 0 and at most 1, got {share:g}.")

    rng = np.random.default_rng(seed)
    order = rng.permutation(len(pairs))
    hidden_count = max(1, round(share * len(pairs)))
    middle = hidden_count + (len(pairs) - hidden_count) // 2
    hidden_rows = order[:hidden_count]

    source_rows = order[:middle]
    target_rows = np.concatenate([hidden_rows, order[middle:]])
    source_id_of = _ids("source", rng.permutation(source_rows))
    target_id_of = _ids("target", rng.permutation(target_rows))
    return BuccData(
        source_ids=list(source_id_of.values()),
        sources=[pairs[row][0] for row in source_id_of],
        target_ids=list(target_id_of.values()),
        targets=[pairs[row][1] for row in target_id_of],
        gold=frozenset((source_id_of[row], target_id_of[row]) for row in hidden_rows.tolist()),
    )


def _ids(side: str, rows: np.ndarray) -> dict[int, str]:
    """The id of each row of a side, numbered in their order."""
    return {row: f"{side}-{number:06d}" for number, row in enumerate(rows.tolist(), start=1)}


def independent_pairs(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The first pair of each group of pairs that are connected by equal texts of a side."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    number_of: dict[tuple[str, str], int] = {}
    source_numbers = []
    target_numbers = []
    for source, target in pairs:
        source_numbers.append(number_of.setdefault(("source", source), len(number_of)))
        target_numbers.append(number_of.setdefault(("target", target), len(number_of)))

    size = len(number_of)
    ones = np.ones(len(pairs))
    links = coo_array((ones, (source_numbers, target_numbers)), shape=(size, size))
    _, group_of = connected_components(links, directed=False)
    _, first_rows = np.unique(group_of[source_numbers], return_index=True)
    return [pairs[row] for row in np.sort(first_rows)]
