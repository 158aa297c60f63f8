"""Margin scores (Artetxe and Schwenk, 2019) and extraction of pairs: proposals by margin, matched one to one."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from hf_xlsr.mining.search.neighbours import BothWays, neighbours_both_ways
from hf_xlsr.utils.errors import require_choice, require_positive

logger = logging.getLogger(__name__)

MARGINS = ("ratio", "distance", "absolute")
SMALLEST_MEAN = 0.05
RETRIEVALS = ("max", "intersection", "forward", "backward")
ROWS_AT_ONCE = 2**15  # rows of neighbours scored at a time


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

    def best(self, threshold: float | None = None, max_pairs: int | None = None) -> MinedBitext:
        """The pairs at or above the threshold, at most `max_pairs` of them."""
        count = len(self)
        if threshold is not None:
            count = int((self.score >= threshold).sum())
        if max_pairs is not None:
            count = min(count, max_pairs)
        return MinedBitext(self.source[:count], self.target[:count], self.score[:count])


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


def warn_of_small_means(source_means: np.ndarray, target_means: np.ndarray, margin: str) -> None:
    """Says how many pairs have a mean cosine that `margin_scores` raises; the means are of each pair."""
    raised = int(((source_means + target_means) / 2 < SMALLEST_MEAN).sum())
    if margin == "ratio" and raised:
        logger.warning(
            "the neighbours of %s pairs have a mean cosine below %g, which margin ratio raises to it: there are too few "
            "sentences, or unrelated ones; use margin distance.",
            f"{raised:,}",
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
) -> MinedBitext:
    """Pairs from the neighbourhoods of both sides, best first.

    Each source proposes its neighbour with the best margin (not the best cosine; of equal margins the nearer one), and
    so does each target. `forward` and `backward` take the proposals of one side, `intersection` those that both sides
    make, `max` those that either side makes.

    One to one, pairs are taken greedily, best score first, equal scores by lower source and then lower target;
    otherwise all distinct proposals are kept. The threshold is inclusive.

    Args:
        neighbours: Result of `neighbours_both_ways`.
        margin: `ratio`, `distance` or `absolute`, see `margin_scores`.
        retrieval: `max`, `intersection`, `forward` or `backward`.
        threshold: Lowest score that is kept; None keeps all.
        one_to_one: Use each row in at most one pair.
        max_pairs: Number of best pairs to keep; None keeps all.
        without: Rows of both sides that take no part, bool, `(n,)` and `(m,)`; they still count as neighbours in means.

    Examples:
        >>> vectors = np.eye(3, dtype=np.float32)
        >>> len(extract_pairs(neighbours_both_ways(vectors, vectors, 2), retrieval="intersection"))
        3
    """
    require_choice("retrieval", retrieval, RETRIEVALS)
    require_positive("max_pairs", max_pairs)
    source_count = len(neighbours.forward_indices)
    target_count = len(neighbours.backward_indices)
    if not source_count or not target_count:
        no_rows = np.empty(0, np.int64)
        return MinedBitext(no_rows, no_rows, np.empty(0, np.float64))

    source_means, target_means = neighbours.means()
    without_source, without_target = without or (None, None)
    forward, forward_scores = _best_by_margin(
        neighbours.forward_similarities,
        neighbours.forward_indices,
        source_means,
        target_means,
        margin,
        without_target,
    )
    backward, backward_scores = _best_by_margin(
        neighbours.backward_similarities,
        neighbours.backward_indices,
        target_means,
        source_means,
        margin,
        without_source,
    )

    # A pair that both sides propose is kept once, as the forward one: its score is the same.
    mutual = backward[forward] == np.arange(source_count)
    use_forward = np.full(source_count, retrieval != "backward")
    use_backward = np.full(target_count, retrieval in ("backward", "max"))
    if retrieval == "intersection":
        use_forward &= mutual
    elif retrieval == "max":
        use_backward[forward[mutual]] = False
    if without is not None:
        use_forward &= ~without[0] & np.isfinite(forward_scores)
        use_backward &= ~without[1] & np.isfinite(backward_scores)

    source = np.concatenate([np.flatnonzero(use_forward), backward[use_backward]])
    target = np.concatenate([forward[use_forward], np.flatnonzero(use_backward)])
    score = np.concatenate([forward_scores[use_forward], backward_scores[use_backward]])
    order = np.lexsort((target, source, -score))
    if one_to_one:
        order = order[_greedy_matching(source[order], target[order], source_count, target_count)]
    pairs = MinedBitext(source[order], target[order], score[order]).best(threshold, max_pairs)
    warn_of_small_means(source_means[pairs.source], target_means[pairs.target], margin)
    return pairs


def _best_by_margin(
    similarities: np.ndarray,
    indices: np.ndarray,
    own_means: np.ndarray,
    other_means: np.ndarray,
    margin: str,
    without: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The neighbour of each row with the best margin, and that margin; `(rows,)` each.

    The margin is minus infinity where no neighbour may take part.
    """
    best = np.empty(len(indices), np.int64)
    best_scores = np.empty(len(indices), np.float64)
    for start in range(0, len(indices), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        neighbours = np.asarray(indices[rows])
        scores = margin_scores(similarities[rows], own_means[rows, None], other_means[neighbours], margin)
        if without is not None:
            scores[without[neighbours]] = -np.inf

        column = scores.argmax(axis=1)[:, None]
        best[rows] = np.take_along_axis(neighbours, column, axis=1)[:, 0]
        best_scores[rows] = np.take_along_axis(scores, column, axis=1)[:, 0]
    return best, best_scores


def _greedy_matching(
    sources: np.ndarray,
    targets: np.ndarray,
    source_count: int,
    target_count: int,
) -> list[int]:
    """Positions of the pairs that greedy one-to-one matching takes, ascending; the pairs are given best first."""
    taken: list[int] = []
    used_sources = bytearray(source_count)
    used_targets = bytearray(target_count)
    for position, (source, target) in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
        if not (used_sources[source] or used_targets[target]):
            used_sources[source] = used_targets[target] = True
            taken.append(position)
    return taken
