"""Data of the BUCC shared task: two sides with ids, and which ids are translations of each other."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from hf_xlsr.data.formats.lines import decode, iter_lines, open_binary
from hf_xlsr.data.formats.source import BadLine, BrokenFile
from hf_xlsr.utils.errors import XlsrError


@dataclass(frozen=True)
class BuccData:
    """Sentences of two languages, some of which are hidden translations.

    Attributes:
        source_ids: Ids of the sources, all different.
        sources: Sentences of the first language, one for each id.
        target_ids: Ids of the targets, all different.
        targets: Sentences of the second language, one for each id.
        gold: The known translations, as (source id, target id); one or more.

    Raises:
        XlsrError: ids and sentences differ in number, an id occurs twice, or `gold` is empty or has an unknown id.

    Example:
        >>> BuccData(["a1"], ["Hello."], ["b1", "b2"], ["Au revoir.", "Bonjour."], frozenset({("a1", "b2")})).targets
        ['Au revoir.', 'Bonjour.']
    """

    source_ids: Sequence[str]
    sources: Sequence[str]
    target_ids: Sequence[str]
    targets: Sequence[str]
    gold: frozenset[tuple[str, str]]

    def __post_init__(self) -> None:
        sides = (("source", self.source_ids, self.sources), ("target", self.target_ids, self.targets))
        for place, (side, ids, texts) in enumerate(sides):
            if len(ids) != len(texts):
                raise XlsrError(f"there are {len(ids)} {side} ids and {len(texts)} {side}s; give one id for each.")
            known = set(ids)
            if len(known) < len(ids):
                twice = Counter(ids).most_common(1)[0][0]
                raise XlsrError(f"{side} id '{twice}' occurs twice; ids have to differ.")
            unknown = next((pair[place] for pair in sorted(self.gold) if pair[place] not in known), None)
            if unknown is not None:
                raise XlsrError(f"gold has {side} id '{unknown}', which no {side} bears.")
        if not self.gold:
            raise XlsrError("gold has no pair; F1 needs one at least.")


def read_bucc(
    source_file: str | os.PathLike[str], target_file: str | os.PathLike[str], gold_file: str | os.PathLike[str]
) -> BuccData:
    """Reads the shared task's files: a line is id, tab, text; a gold line two ids with a tab between.

    Either side's id may come first in the gold file; which one, is told by the ids. Space around ids and texts is cut
    off. Files may be compressed (`.gz`, `.bz2`, `.xz`, `.zst`).

    Args:
        source_file: Ids and sentences of the first language.
        target_file: Ids and sentences of the second language.
        gold_file: Ids of the translations.

    Returns:
        The data, in the order of the files.

    Raises:
        XlsrError: a file cannot be read or is empty, or a line has no tab, an id a second time, or, in the gold file,
            an id that no sentence bears; the sentence names file and line.
    """
    source_ids, sources = _read_side(Path(source_file))
    target_ids, targets = _read_side(Path(target_file))
    rows = list(_read_lines(Path(gold_file)))
    if not rows:
        raise XlsrError(f"{gold_file} has no pair; F1 needs one at least.")
    files, known = [source_file, target_file], [set(source_ids), set(target_ids)]
    if sum(row[1] in known[0] for row in rows) < sum(row[1] in known[1] for row in rows):
        rows = [(number, second, first) for number, first, second in rows]
    for number, *pair in rows:
        for id_, file, ids in zip(pair, files, known, strict=True):
            if id_ not in ids:
                raise XlsrError(
                    f"line {number} of {gold_file} has id {id_!r}, which {file} does not; check the files."
                )
    gold = frozenset((source, target) for _, source, target in rows)
    return BuccData(source_ids, sources, target_ids, targets, gold)


def hide_pairs(rows: Iterable[Mapping[str, Any]], *, share: float, seed: int = 1) -> BuccData:
    """A BUCC-like test out of parallel rows: some keep both sides, of each other row only one side stays.

    A text that occurs in several rows would make translations that nobody marked. Rows that hang together by equal
    sources or equal targets therefore count as one, the first of them; the others are left out.

    Args:
        rows: Parallel sentences, `{"source": ..., "target": ...}`.
        share: Share of the rows that keep both sides, above 0 and at most 1; one row at least. Half of the others keep
            the source, half the target.
        seed: Of the choice, and of the order on each side.

    Returns:
        The data, with made-up ids.

    Raises:
        XlsrError: `share` is not in that range, there are no rows, or a row lacks a side.

    Example:
        >>> data = hide_pairs([{"source": f"s{n}", "target": f"t{n}"} for n in range(10)], share=0.2)
        >>> len(data.sources), len(data.targets), len(data.gold)
        (6, 6, 2)
    """
    if not 0 < share <= 1:
        raise XlsrError(f"share is {share}; give a fraction of the rows above 0, at most 1.")
    pairs: list[tuple[str, str]] = []
    for number, row in enumerate(rows):
        if "source" not in row or "target" not in row:
            raise XlsrError(f"row {number} lacks 'source' or 'target'; give each row both.")
        pairs.append((row["source"], row["target"]))
    if not pairs:
        raise XlsrError("there are no rows; give parallel sentences to hide.")
    pairs = _independent(pairs)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(pairs))
    hidden = max(1, round(share * len(pairs)))
    middle = hidden + (len(pairs) - hidden) // 2
    source_rows = rng.permutation(order[:middle])
    target_rows = rng.permutation(np.concatenate([order[:hidden], order[middle:]]))
    source_ids = {row: f"source-{number:06d}" for number, row in enumerate(source_rows.tolist(), start=1)}
    target_ids = {row: f"target-{number:06d}" for number, row in enumerate(target_rows.tolist(), start=1)}
    return BuccData(
        list(source_ids.values()),
        [pairs[row][0] for row in source_ids],
        list(target_ids.values()),
        [pairs[row][1] for row in target_ids],
        frozenset((source_ids[row], target_ids[row]) for row in order[:hidden].tolist()),
    )


def _independent(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The first pair of each group of pairs that hang together by equal texts of a side."""
    numbers: tuple[dict[str, int], dict[str, int]] = ({}, {})
    x, y = (np.array([seen.setdefault(pair[side], len(seen)) for pair in pairs]) for side, seen in enumerate(numbers))
    size = len(numbers[0]) + len(numbers[1])
    links = coo_array((np.ones(len(pairs)), (x, y + len(numbers[0]))), shape=(size, size))
    groups = connected_components(links, directed=False)[1][x]
    return [pairs[row] for row in np.sort(np.unique(groups, return_index=True)[1])]


def _read_side(path: Path) -> tuple[list[str], list[str]]:
    texts: dict[str, str] = {}
    for number, id_, text in _read_lines(path):
        if id_ in texts:
            raise XlsrError(f"line {number} of {path} has id '{id_}' a second time; ids have to differ.")
        texts[id_] = text
    if not texts:
        raise XlsrError(f"{path} is empty; each line is an id, a tab and a sentence.")
    return list(texts), list(texts.values())


def _read_lines(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line number, and what stands before and behind the first tab."""
    number = 0
    try:
        with open_binary(path) as file:
            for number, line in enumerate(iter_lines(file), start=1):
                first, tab, second = decode(line).partition("\t")
                if not tab:
                    raise BadLine("no tab in it")
                if not second.strip():
                    raise BadLine("nothing behind the tab")
                yield number, first.strip(), second.strip()
    except BrokenFile as error:
        raise XlsrError(f"{path} cannot be read ({error}); check the file.") from error
    except BadLine as error:
        raise XlsrError(f"line {number} of {path} cannot be read ({error}); mend or remove it.") from error
