"""Margin scores (Artetxe and Schwenk, 2019) and extraction of pairs: proposals by margin, matched one to one."""

from __future__ import annotations

import bisect
import logging
import operator
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hf_xlsr.mining.facts import PairFacts
from hf_xlsr.mining.search.neighbours import BothWays, neighbours_both_ways
from hf_xlsr.mining.search.sorted_pairs import PAIR, best_first, pairs_of
from hf_xlsr.mining.work_folder import Stage, save_rows
from hf_xlsr.utils.errors import require_choice, require_positive
from hf_xlsr.utils.files import LEFTOVER

logger = logging.getLogger(__name__)

MARGINS = ("ratio", "distance", "absolute")
SMALLEST_MEAN = 0.05
# Which of their proposals the sources and the targets make: all, or those that both sides make, or that one side makes.
PROPOSALS = {
    "max": {"source": "all", "target": "single"},
    "intersection": {"source": "mutual"},
    "forward": {"source": "all"},
    "backward": {"target": "all"},
}
RETRIEVALS = tuple(PROPOSALS)
ROWS_AT_ONCE = 2**15  # rows of neighbours scored at a time
BYTES_PER_NEIGHBOUR = 64  # while it is scored
BYTES_PER_ROW = 128  # of extraction in memory
SMALLEST_MEMORY = 1 << 24  # that extraction takes in any case


@dataclass(frozen=True)
class MinedBitext:
    """Mined pairs, best score first; equal scores by lower source, then by lower target.

    Attributes:
        source: Row of each pair's source, int64.
        target: Row of each pair's target, int64.
        score: Margin score of each pair, float64.
        facts: How `mine_bitext` found them, for the card of a dataset.
    """

    source: np.ndarray
    target: np.ndarray
    score: np.ndarray
    facts: PairFacts | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, pairs: np.ndarray) -> MinedBitext:
        """Pairs from records of type `PAIR`, of which the columns are views."""
        return cls(pairs["source"], pairs["target"], pairs["score"])

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> MinedBitext:
        """The pairs in a file that `extract_pairs` wrote, memory-mapped."""
        return cls.of(np.load(file, mmap_mode="r"))

    def __len__(self) -> int:
        return len(self.score)

    def __getitem__(self, rows: slice) -> MinedBitext:
        return MinedBitext(self.source[rows], self.target[rows], self.score[rows])

    def rows(self, source: Sequence[str], target: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The pairs with their texts, best first, for `write_pairs` and `push_corpus`.

        Args:
            source: The sentences that were mined, by row.
            target: Those of the other side.

        Examples:
            >>> mined = MinedBitext(np.array([1]), np.array([0]), np.array([1.25]))
            >>> list(mined.rows(["yes", "good day"], ["bonjour"]))
            [{'score': 1.25, 'source': 'good day', 'target': 'bonjour'}]
        """
        for source_row, target_row, score in zip(self.source, self.target, self.score, strict=True):
            yield {"score": float(score), "source": source[source_row], "target": target[target_row]}

    def best(self, threshold: float | None = None, max_pairs: int | None = None) -> MinedBitext:
        """The pairs at or above the threshold, at most `max_pairs` of them."""
        count = len(self)
        if threshold is not None:
            count = bisect.bisect_right(self.score, -threshold, key=operator.neg)
        if max_pairs is not None:
            count = min(count, max_pairs)
        return self[:count]


def margin_scores(
    forward_sim: np.ndarray,
    mean_x: np.ndarray,
    mean_y: np.ndarray,
    margin: str = "ratio",
) -> np.ndarray:
    r"""Similarity of pairs against the neighbourhoods of their two sentences, float64.

    With `a = \cos(x, y)` and `b` the average of the two means: `ratio` is `a / b`, `distance` `a - b`, `absolute` `a`.
    In `ratio` a `b` below 0.05, as only few or unrelated sentences give, is raised to it: near 0 the ratio would be noise
    of any size, and below 0 a better cosine would mean a worse score. stopes uses twice the cosine: its `ratio` equals
    this one, its `distance` is twice this one.

    Args:
        forward_sim: Cosines of the pairs, any shape.
        mean_x: Mean cosine of each pair's source with its nearest targets; broadcast against `forward_sim`.
        mean_y: Mean cosine of each pair's target with its nearest sources; likewise.
        margin: `ratio`, `distance` or `absolute`.

    Examples:
        >>> margin_scores(np.array([0.9]), np.array([0.8]), np.array([0.4]))
        array([1.5])
    """
    require_choice("margin", margin, MARGINS)
    average = (np.asarray(mean_x, np.float64) + np.asarray(mean_y, np.float64)) / 2
    similarity, average = np.broadcast_arrays(np.asarray(forward_sim, np.float64), average)
    scores: np.ndarray = similarity.copy()
    if margin == "ratio":
        scores /= np.maximum(average, SMALLEST_MEAN)
    elif margin == "distance":
        scores -= average
    return scores


def count_small_means(source_means: np.ndarray, target_means: np.ndarray) -> int:
    """Number of pairs with a mean cosine that margin `ratio` raises; the means are of each pair."""
    return int(((source_means + target_means) / 2 < SMALLEST_MEAN).sum())


def warn_of_small_means(count: int, margin: str) -> None:
    """Says how many pairs have a mean cosine that `margin_scores` raises."""
    if margin == "ratio" and count:
        logger.warning(
            "the neighbours of %s pairs have a mean cosine below %g, which margin ratio raises to it: there are too few "
            "sentences, or unrelated ones; use margin distance.",
            f"{count:,}",
            SMALLEST_MEAN,
        )


def mine_vectors(
    source_vectors: np.ndarray,
    target_vectors: np.ndarray,
    *,
    k: int = 4,
    method: str = "auto",
    margin: str = "ratio",
    retrieval: str = "max",
    threshold: float | None = None,
    one_to_one: bool = True,
    max_pairs: int | None = None,
) -> MinedBitext:
    """Pairs of rows (of length 1) that are likely translations: `neighbours_both_ways`, then `extract_pairs`.

    With retrieval `max`, `k` 4 and margin `ratio` this is LASER's mining (whose threshold is strict).

    Examples:
        >>> vectors = np.eye(3, dtype=np.float32)
        >>> mined = mine_vectors(vectors, vectors[[2, 0, 1]], k=2)
        >>> list(zip(mined.source.tolist(), mined.target.tolist()))
        [(0, 1), (1, 2), (2, 0)]
    """
    return extract_pairs(
        neighbours_both_ways(source_vectors, target_vectors, k, method=method),
        margin=margin,
        retrieval=retrieval,
        threshold=threshold,
        one_to_one=one_to_one,
        max_pairs=max_pairs,
    )


def extract_pairs(
    neighbours: BothWays,
    *,
    margin: str = "ratio",
    retrieval: str = "max",
    threshold: float | None = None,
    one_to_one: bool = True,
    max_pairs: int | None = None,
    without: tuple[np.ndarray, np.ndarray] | None = None,
    memory: int | None = None,
    file: str | os.PathLike[str] | None = None,
) -> MinedBitext:
    """Pairs from the neighbourhoods of both sides, best first.

    Each source proposes its neighbour with the best margin (not the best cosine; of equal margins the nearer one), and
    so does each target. `forward` and `backward` take the proposals of one side, `intersection` those that both sides
    make, `max` those that either side makes.

    One to one, pairs are taken greedily, best score first, equal scores by lower source and then lower target;
    otherwise all distinct proposals are kept. The threshold is inclusive.

    If the sides do not fit in the memory, the proposals are sorted in runs and merged, and what grows with the sides is
    in temporary files: 25 bytes a row, and 24 for each proposal. The result does not depend on the memory.

    Args:
        neighbours: Result of `neighbours_both_ways`.
        margin: `ratio`, `distance` or `absolute`, see `margin_scores`.
        retrieval: `max`, `intersection`, `forward` or `backward`.
        threshold: Lowest score that is kept; None keeps all.
        one_to_one: Use each row in at most one pair.
        max_pairs: Number of best pairs to keep; None keeps all.
        without: Rows of both sides that take no part, bool, `(n,)` and `(m,)`; they still count as neighbours in means.
        memory: Bytes that extraction may allocate, at least 16 MiB; half of the machine's available memory if None.
            Memory-mapped neighbours do not count, nor does the result without a `file`, 24 bytes a pair.
        file: A `.npy` file for the result, which is then memory-mapped; temporary files are in its folder.

    Examples:
        >>> vectors = np.eye(3, dtype=np.float32)
        >>> len(extract_pairs(neighbours_both_ways(vectors, vectors, 2), retrieval="intersection"))
        3
    """
    require_choice("margin", margin, MARGINS)
    require_choice("retrieval", retrieval, RETRIEVALS)
    require_positive("max_pairs", max_pairs)
    rows = len(neighbours.forward_indices) + len(neighbours.backward_indices)
    if memory is None:
        memory = psutil.virtual_memory().available // 2
    memory = max(SMALLEST_MEMORY, memory)

    with _scratch(file, in_memory=BYTES_PER_ROW * rows <= memory) as scratch:
        without_source, without_target = without or (None, None)
        source = _Side(
            "source", neighbours.forward_similarities, neighbours.forward_indices, without_source, scratch, memory
        )
        target = _Side(
            "target", neighbours.backward_similarities, neighbours.backward_indices, without_target, scratch, memory
        )
        pairs = _pairs(source, target, margin, PROPOSALS[retrieval], threshold)
        pairs = best_first(pairs, memory // 2, scratch.path)
        if one_to_one:
            pairs = _matched(pairs, source.used, target.used)
        pairs = _watched(_first(pairs, max_pairs), source.means, target.means, margin)

        if file is None:
            return MinedBitext.of(np.concatenate([np.empty(0, PAIR), *pairs]))
        save_rows(Path(file), pairs, (rows,), PAIR)
    return MinedBitext.load(file)


@contextmanager
def _scratch(file: str | os.PathLike[str] | None, *, in_memory: bool) -> Iterator[Stage]:
    """Arrays in memory, or in files that are removed at the end."""
    if in_memory:
        yield Stage(None)
        return
    folder = None if file is None else Path(file).parent
    with tempfile.TemporaryDirectory(prefix=LEFTOVER, dir=folder, ignore_cleanup_errors=True) as name:
        yield Stage(Path(name))


class _Side:
    """The neighbourhoods of one side's rows, and the partner that each row proposes.

    Attributes:
        means: Mean similarity of each row with its neighbours, float64, once `measure` has computed it.
        partners: The neighbour of each row with the best margin, int64, once `choose` has found it.
        scores: That margin, float64; minus infinity where no neighbour may take part.
        used: 1 for rows that are in a pair, uint8.
    """

    def __init__(
        self,
        name: str,
        similarities: np.ndarray,
        indices: np.ndarray,
        without: np.ndarray | None,
        scratch: Stage,
        memory: int,
    ) -> None:
        self.name = name
        self.similarities = similarities
        self.indices = indices
        self.without = without
        rows = len(indices)
        self.means = scratch.array(f"{name}-means", (rows,), np.float64)
        self.partners = scratch.array(f"{name}-partners", (rows,), np.int64)
        self.scores = scratch.array(f"{name}-scores", (rows,), np.float64)
        self.used = scratch.array(f"{name}-used", (rows,), np.uint8)

        bytes_per_row = BYTES_PER_NEIGHBOUR * max(1, indices.shape[1])
        self.step = min(ROWS_AT_ONCE, max(1, memory // (4 * bytes_per_row)))

    def __len__(self) -> int:
        return len(self.indices)

    def blocks(self) -> Iterator[slice]:
        """Ranges of rows that are read at a time."""
        for start in range(0, len(self), self.step):
            yield slice(start, min(start + self.step, len(self)))

    def measure(self) -> None:
        """Computes the means."""
        for block in self.blocks():
            self.means[block] = self.similarities[block].mean(axis=1, dtype=np.float64)

    def choose(self, other: _Side, margin: str) -> None:
        """Finds the partner of each row among its neighbours, which are rows of the other side."""
        for block in self.blocks():
            neighbours = np.asarray(self.indices[block])
            scores = margin_scores(self.similarities[block], self.means[block, None], other.means[neighbours], margin)
            if other.without is not None:
                scores[other.without[neighbours]] = -np.inf

            column = scores.argmax(axis=1)[:, None]
            self.partners[block] = np.take_along_axis(neighbours, column, axis=1)[:, 0]
            self.scores[block] = np.take_along_axis(scores, column, axis=1)[:, 0]

    def proposals(self, other: _Side, kind: str, threshold: float | None) -> Iterator[tuple[np.ndarray, ...]]:
        """Rows, their partners and their scores, block by block; for `kind` see `PROPOSALS`."""
        for block in self.blocks():
            rows = np.arange(block.start, block.stop)
            partners = self.partners[block]
            scores = self.scores[block]
            kept = np.ones(len(rows), bool)
            if kind != "all":
                is_mutual = other.partners[partners] == rows
                kept = is_mutual if kind == "mutual" else ~is_mutual
            if self.without is not None:
                kept = kept & ~self.without[block] & np.isfinite(scores)
            if threshold is not None:
                kept = kept & (scores >= threshold)
            yield rows[kept], partners[kept], scores[kept]


def _pairs(
    source: _Side,
    target: _Side,
    margin: str,
    kinds: dict[str, str],
    threshold: float | None,
) -> Iterator[np.ndarray]:
    """The proposed pairs, each once, as records of type `PAIR`."""
    if not len(source) or not len(target):
        return
    source.measure()
    target.measure()
    sides = ((source, target), (target, source))
    one_way = list(kinds.values()) == ["all"]
    for side, other in sides:
        if side.name in kinds or not one_way:
            side.choose(other, margin)

    # A pair that both sides propose is kept once, as the source's: its score is the same.
    for side, other in sides:
        if side.name in kinds:
            for rows, partners, scores in side.proposals(other, kinds[side.name], threshold):
                yield pairs_of(rows, partners, scores) if side is source else pairs_of(partners, rows, scores)


def _matched(blocks: Iterable[np.ndarray], used_sources: np.ndarray, used_targets: np.ndarray) -> Iterator[np.ndarray]:
    """The pairs that greedy one-to-one matching takes, of pairs that come best first."""
    source_marks = used_sources.data  # which Python reads faster than an array
    target_marks = used_targets.data
    for block in blocks:
        taken: list[int] = []
        pairs = zip(block["source"].tolist(), block["target"].tolist(), strict=True)
        for position, (source, target) in enumerate(pairs):
            if not (source_marks[source] or target_marks[target]):
                source_marks[source] = target_marks[target] = 1
                taken.append(position)
        yield block.take(np.array(taken, np.intp))


def _first(blocks: Iterable[np.ndarray], count: int | None) -> Iterator[np.ndarray]:
    """At most that many pairs, all if None."""
    for block in blocks:
        yield block[:count]
        if count is not None:
            count -= len(block)
            if count <= 0:
                return


def _watched(
    blocks: Iterable[np.ndarray],
    source_means: np.ndarray,
    target_means: np.ndarray,
    margin: str,
) -> Iterator[np.ndarray]:
    """The same pairs; after the last one, a warning of small means."""
    count = 0
    for block in blocks:
        yield block
        count += count_small_means(source_means[block["source"]], target_means[block["target"]])
    warn_of_small_means(count, margin)
