"""Extraction of pairs from whole arrays in memory: the naive twin of `extract_pairs`."""

from __future__ import annotations

import numpy as np

from hf_xlsr.mining import BothWays, MinedBitext
from hf_xlsr.mining.search.extraction import margin_scores


def extract_at_once(
    neighbours: BothWays,
    *,
    margin: str = "ratio",
    retrieval: str = "max",
    threshold: float | None = None,
    one_to_one: bool = True,
    max_pairs: int | None = None,
    without: tuple[np.ndarray, np.ndarray] | None = None,
) -> MinedBitext:
    """The pairs of `extract_pairs`."""
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

    count = len(order)
    if threshold is not None:
        count = int((score[order] >= threshold).sum())
    if max_pairs is not None:
        count = min(count, max_pairs)
    order = order[:count]
    return MinedBitext(source[order], target[order], score[order])


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
    scores = margin_scores(similarities, own_means[:, None], other_means[indices], margin)
    if without is not None:
        scores[without[indices]] = -np.inf

    column = scores.argmax(axis=1)[:, None]
    best = np.take_along_axis(indices, column, axis=1)[:, 0]
    best_scores = np.take_along_axis(scores, column, axis=1)[:, 0]
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
