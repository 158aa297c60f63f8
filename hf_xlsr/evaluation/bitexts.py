"""Bitexts with hidden translations: the files of the BUCC shared task, and tests built from parallel rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hf_xlsr.data.formats.lines import BadLine, BrokenFile, decode, iter_lines, open_binary
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
        sides = ("source", self.source_ids, self.sources), ("target", self.target_ids, self.targets)
        for number, (side, ids, texts) in enumerate(sides):
            distinct_ids = set(ids)
            unknown = sorted({pair[number] for pair in self.gold} - distinct_ids)
            if not len(distinct_ids) == len(ids) == len(texts) or unknown or not self.gold:
                raise XlsrError(
                    f"`{side}_ids` must be distinct, one for each sentence, and have those of `gold`, which has one or "
                    f"more pairs; unknown are {unknown[:3]}."
                )

    @property
    def texts(self) -> list[str]:
        """All that affects the metrics, for a hash."""
        gold_ids = chain.from_iterable(sorted(self.gold))
        return [*self.source_ids, *self.sources, *self.target_ids, *self.targets, *gold_ids]


def read_bucc(
    source_file: str | os.PathLike[str], target_file: str | os.PathLike[str], gold_file: str | os.PathLike[str]
) -> BuccData:
    """Reads the shared task's files: a line is id, tab, text; a gold line two ids with a tab between.

    Either side's id may come first in the gold file. Space around ids and texts is removed. Files may be compressed
    (`.gz`, `.bz2`, `.xz`, `.zst`).
    """
    source_ids, sources = _read_columns(Path(source_file))
    target_ids, targets = _read_columns(Path(target_file))
    gold_columns = _read_columns(Path(gold_file))

    first_ids = set(gold_columns[0])
    if len(first_ids.intersection(source_ids)) < len(first_ids.intersection(target_ids)):
        gold_columns = gold_columns[::-1]
    gold = frozenset(zip(gold_columns[0], gold_columns[1], strict=True))
    return BuccData(source_ids, sources, target_ids, targets, gold)


def _read_columns(path: Path) -> tuple[list[str], list[str]]:
    """The texts before and after the first tab of each line."""
    first_column = []
    second_column = []
    number = 0
    try:
        with open_binary(path) as file:
            for line in iter_lines(file):
                number += 1
                first, _, second = decode(line).partition("\t")
                if not second.strip():
                    raise BadLine("it must be an id, a tab and a text")
                first_column.append(first.strip())
                second_column.append(second.strip())
    except (BrokenFile, BadLine) as error:
        line_name = f"line {number} of " if number else ""
        raise XlsrError(f"Cannot read {line_name}{path}: {error}.") from error
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
    pairs = [(row["source"], row["target"]) for row in rows]
    return hidden_bitext(independent_pairs(pairs), share, seed)


def hidden_bitext(pairs: Sequence[tuple[str, str]], share: float, seed: int) -> BuccData:
    """`hide_pairs` of translation pairs without a common text."""
    if not 0 < share <= 1:
        raise XlsrError(f"The share of hidden pairs (--hide-pairs) must be above 0 and at most 1, got {share:g}.")

    rng = np.random.default_rng(seed)
    order = rng.permutation(len(pairs))
    hidden = max(1, round(share * len(pairs)))
    middle = hidden + (len(pairs) - hidden) // 2
    source_rows = rng.permutation(order[:middle]).tolist()
    target_rows = rng.permutation(np.concatenate([order[:hidden], order[middle:]])).tolist()

    source_ids = {row: f"source-{number:06d}" for number, row in enumerate(source_rows, start=1)}
    target_ids = {row: f"target-{number:06d}" for number, row in enumerate(target_rows, start=1)}
    return BuccData(
        source_ids=list(source_ids.values()),
        sources=[pairs[row][0] for row in source_rows],
        target_ids=list(target_ids.values()),
        targets=[pairs[row][1] for row in target_rows],
        gold=frozenset((source_ids[row], target_ids[row]) for row in order[:hidden].tolist()),
    )


def independent_pairs(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The first pair of each group of pairs that are connected by equal texts of a side."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    number_of: dict[tuple[str, str], int] = {}
    sources = []
    targets = []
    for source, target in pairs:
        sources.append(number_of.setdefault(("source", source), len(number_of)))
        targets.append(number_of.setdefault(("target", target), len(number_of)))

    links = coo_array((np.ones(len(pairs)), (sources, targets)), shape=(len(number_of), len(number_of)))
    _, group_of = connected_components(links, directed=False)
    _, first_rows = np.unique(group_of[sources], return_index=True)
    return [pairs[row] for row in np.sort(first_rows)]
