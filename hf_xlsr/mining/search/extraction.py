"""Pairs out of neighbourhoods: proposals by margin, pooled, and taken one to one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.mining.search.both_ways import BothWays, SearchOptions, neighbours_both_ways
from hf_xlsr.mining.search.margin import MARGINS, margin_scores
from hf_xlsr.mining.search.storage import drop_pages
from hf_xlsr.utils.errors import XlsrError, nearest

RETRIEVALS = ("max", "intersection", "forward", "backward")
ROWS_AT_ONCE = 2**15  # rows of neighbours scored at a time
WINDOW = 1024  # proposals settled at a time where they hang on each other in long chains


@dataclass(frozen=True)
class MinedBitext:
    """Mined pairs, best score first; equal scores by lower source, then by lower target.

    Attributes:
        source: Row of each pair's source, int64.
        target: Row of each pair's target, int64.
        score: Margin score of each pair, float64.
    """

    source: np.ndarray
    target: np.ndarray
    score: np.ndarray

    def __len__(self) -> int:
        return len(self.score)


def mine_vectors(
    source_vectors: np.ndarray,
    target_vectors: np.ndarray,
    *,
    k: int = 4,
    margin: str = "ratio",
    retrieval: str = "max",
    threshold: float | None = None,
    one_to_one: bool = True,
    max_pairs: int | None = None,
    **search: Unpack[SearchOptions],
) -> MinedBitext:
    """Pairs of rows that are likely translations: `neighbours_both_ways`, then `extract_pairs`.

    Args:
        source_vectors: `(n, width)`, of length 1.
        target_vectors: `(m, width)`, of length 1.
        k: Size of the neighbourhoods, both ways; cut to the number of rows on the other side.
        margin: `ratio`, `distance` or `absolute`, see `margin_scores`.
        retrieval: `max`, `intersection`, `forward` or `backward`, see `extract_pairs`.
        threshold: The lowest score that counts; none by default.
        one_to_one: Each row in one pair at most.
        max_pairs: Keep that many of the best pairs; all by default.
        **search: Options of `neighbours_both_ways`.

    Returns:
        The pairs, best first; none when one side is empty.

    Raises:
        XlsrError: an option is wrong, or the vectors hold NaN, infinity or a row of zeros.

    Relations:
        LASER's mining with `retrieval max`, `k` 4, margin `ratio` (its threshold is strict).

    Example:
        >>> vectors = np.eye(3, dtype=np.float32)
        >>> mined = mine_vectors(vectors, vectors[[2, 0, 1]], k=2)
        >>> list(zip(mined.source.tolist(), mined.target.tolist()))
        [(0, 1), (1, 2), (2, 0)]
    """
    _check(margin, retrieval, threshold, max_pairs)
    return extract_pairs(
        neighbours_both_ways(source_vectors, target_vectors, k, **search),
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
) -> MinedBitext:
    """Pairs out of both sides' neighbourhoods.

    Every source proposes the one of its neighbours with the best margin (not the best cosine; of equal margins the
    nearer one), and so does every target. `forward` and `backward` take one side's proposals, `intersection` those
    that both sides make, `max` those that either side makes.

    One to one, pairs are then taken greedily, best score first, equal scores by lower source and then lower target;
    otherwise all distinct proposals stay. A pair below the threshold is dropped in every mode, and one exactly at it
    stays. Whether it is dropped before or after pairs are taken makes no difference, as they are taken from the best
    downwards.

    Args:
        neighbours: What `neighbours_both_ways` found.
        margin: `ratio`, `distance` or `absolute`, see `margin_scores`.
        retrieval: `max`, `intersection`, `forward` or `backward`.
        threshold: The lowest score that counts; none by default.
        one_to_one: Each row in one pair at most.
        max_pairs: Keep that many of the best pairs; all by default.

    Returns:
        The pairs, best first.

    Raises:
        XlsrError: `margin` or `retrieval` is unknown, the threshold is NaN, or `max_pairs` is below 1.

    Example:
        >>> vectors = np.eye(3, dtype=np.float32)
        >>> len(extract_pairs(neighbours_both_ways(vectors, vectors, 2), retrieval="intersection"))
        3
    """
    _check(margin, retrieval, threshold, max_pairs)
    source_count, target_count = len(neighbours.forward_indices), len(neighbours.backward_indices)
    if not source_count or not target_count:
        return MinedBitext(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float64))
    means = _row_means(neighbours.forward_similarities), _row_means(neighbours.backward_similarities)
    forward, forward_scores = _best(neighbours.forward_similarities, neighbours.forward_indices, *means, margin)
    backward, backward_scores = _best(
        neighbours.backward_similarities, neighbours.backward_indices, *means[::-1], margin
    )
    del means
    # A pair that both sides propose is kept once, as the forward one: both give it the same score.
    mutual = backward[forward] == np.arange(source_count, dtype=backward.dtype)
    use_forward = np.full(source_count, retrieval != "backward")
    use_backward = np.full(target_count, retrieval in ("backward", "max"))
    if retrieval == "intersection":
        use_forward &= mutual
    elif retrieval == "max":
        use_backward[forward[mutual]] = False
    if threshold is not None:
        use_forward &= forward_scores >= threshold
        use_backward &= backward_scores >= threshold
    x = np.concatenate([np.flatnonzero(use_forward).astype(backward.dtype), backward[use_backward]])
    y = np.concatenate([forward[use_forward], np.flatnonzero(use_backward).astype(forward.dtype)])
    scores = np.concatenate([forward_scores[use_forward], backward_scores[use_backward]])
    # At millions of rows every array that is let go of here counts.
    del forward, backward, forward_scores, backward_scores, mutual, use_forward, use_backward
    np.negative(scores, out=scores)
    order = np.lexsort((y, x, scores)).astype(np.int32 if len(scores) < 2**31 else np.int64)
    x = x[order]
    y = y[order]
    if one_to_one:
        taken = _greedy_matching(x, y, source_count, target_count)
        x, y, order = x[taken], y[taken], order[taken]
    scores = -scores[order[:max_pairs]]
    return MinedBitext(x[:max_pairs].astype(np.int64), y[:max_pairs].astype(np.int64), scores)


def _check(margin: str, retrieval: str, threshold: float | None, max_pairs: int | None) -> None:
    if margin not in MARGINS:
        raise XlsrError(f"margin is '{margin}'; {nearest(margin, MARGINS)}")
    if retrieval not in RETRIEVALS:
        raise XlsrError(f"retrieval is '{retrieval}'; {nearest(retrieval, RETRIEVALS)}")
    if threshold is not None and np.isnan(threshold):
        raise XlsrError("threshold is NaN; give a number, or leave it out to keep every pair.")
    if max_pairs is not None and max_pairs < 1:
        raise XlsrError(f"max_pairs is {max_pairs}; give 1 or more, or leave it out for all pairs.")


def _row_means(similarities: np.ndarray) -> np.ndarray:
    """Mean of each row, float64."""
    means = np.empty(len(similarities), np.float64)
    for start in range(0, len(means), ROWS_AT_ONCE):
        means[start : start + ROWS_AT_ONCE] = similarities[start : start + ROWS_AT_ONCE].mean(axis=1, dtype=np.float64)
        drop_pages(similarities)
    return means


def _best(
    similarities: np.ndarray, indices: np.ndarray, own_means: np.ndarray, other_means: np.ndarray, margin: str
) -> tuple[np.ndarray, np.ndarray]:
    """Each row's neighbour with the best margin, and that margin."""
    best = np.empty(len(indices), np.int32 if len(other_means) < 2**31 else np.int64)
    best_scores = np.empty(len(indices), np.float64)
    for start in range(0, len(indices), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        found = np.asarray(indices[rows])
        scores = margin_scores(similarities[rows], own_means[rows, None], other_means[found], margin)
        place = scores.argmax(axis=1)[:, None]
        best[rows] = np.take_along_axis(found, place, axis=1)[:, 0]
        best_scores[rows] = np.take_along_axis(scores, place, axis=1)[:, 0]
        drop_pages(similarities)
        drop_pages(indices)
    return best, best_scores


def _greedy_matching(x: np.ndarray, y: np.ndarray, source_count: int, target_count: int) -> np.ndarray:
    """Positions of the pairs that greedy one-to-one matching takes, ascending; the pairs come best first.

    A pair that comes first among all that are left of its source and of its target will be taken whatever happens
    elsewhere, so all such pairs are taken at once, and those that share an end with them dropped. A few rounds settle
    real data. Pairs may hang on each other in a chain that gives up one pair a round; when a round settles less than
    an eighth of what is left, the rest is settled window by window from the best downwards, which bounds the work.
    """
    kind = np.int32 if len(x) < 2**31 else np.int64
    first_of_source, first_of_target = np.empty(source_count, kind), np.empty(target_count, kind)
    source_used, target_used = np.zeros(source_count, bool), np.zeros(target_count, bool)

    def settle(left: np.ndarray) -> np.ndarray:
        sources, targets = x[left], y[left]
        # The last assignment to a place counts: backwards, so that it is the first pair.
        first_of_source[sources[::-1]] = left[::-1]
        first_of_target[targets[::-1]] = left[::-1]
        taken = (first_of_source[sources] == left) & (first_of_target[targets] == left)
        source_used[sources[taken]] = target_used[targets[taken]] = True
        chosen.append(left[taken])
        return left[~(source_used[sources] | target_used[targets])]

    chosen: list[np.ndarray] = []
    left = np.arange(len(x), dtype=kind)
    while left.size:
        before = left.size
        left = settle(left)
        if before - left.size < before // 8:
            break
    for start in range(0, left.size, WINDOW):
        window = left[start : start + WINDOW]
        window = window[~(source_used[x[window]] | target_used[y[window]])]
        while window.size:
            window = settle(window)
    return np.sort(np.concatenate(chosen)) if chosen else left
