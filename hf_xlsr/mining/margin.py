"""Margin scoring of sentence pairs (Artetxe and Schwenk, 2019) and one-to-one mining with it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hf_xlsr.errors import XlsrError, nearest
from hf_xlsr.mining.neighbours import as_vectors, nearest_neighbours

MARGINS = ("ratio", "distance", "absolute")
SMALLEST_MEAN = 1e-6


class MinedPair(NamedTuple):
    """A source sentence, a target sentence, and how far above their neighbourhoods they stand."""

    source_index: int
    target_index: int
    score: float


def margin_scores(
    forward_sim: np.ndarray, mean_x: np.ndarray, mean_y: np.ndarray, margin: str = "ratio"
) -> np.ndarray:
    r"""Similarity of a pair against the neighbourhoods of its two sentences.

    With :math:`a = \cos(x, y)` and `b` the average of the two means: `ratio` is :math:`a / b`, `distance`
    :math:`a - b`, `absolute` :math:`a` alone. A `b` of zero or below, which real encoders hardly give, is raised to
    1e-6 in `ratio`, so that a better cosine always means a better score.

    Args:
        forward_sim: Cosines of the pairs, any shape.
        mean_x: Mean cosine of each pair's source with its nearest targets; broadcast against `forward_sim`.
        mean_y: Mean cosine of each pair's target with its nearest sources; likewise.
        margin: `ratio`, `distance` or `absolute`.

    Returns:
        Scores, float64, in the broadcast shape.

    Raises:
        XlsrError: `margin` is not one of the three.

    Relations:
        stopes works with twice the cosine: its `ratio` is this one, its `distance` is twice this one.

    Example:
        >>> margin_scores(np.array([0.9]), np.array([0.8]), np.array([0.4]))
        array([1.5])
    """
    if margin not in MARGINS:
        raise XlsrError(f"margin is '{margin}'; {nearest(margin, MARGINS)}")
    similarity, average = np.broadcast_arrays(
        np.asarray(forward_sim, np.float64), (np.asarray(mean_x, np.float64) + np.asarray(mean_y, np.float64)) / 2
    )
    if margin == "ratio":
        return similarity / np.maximum(average, SMALLEST_MEAN)
    return similarity - average if margin == "distance" else similarity.copy()


def mine_pairs(
    source_vectors: np.ndarray,
    target_vectors: np.ndarray,
    *,
    k: int = 4,
    margin: str = "ratio",
    threshold: float | None = None,
    max_pairs: int | None = None,
) -> list[MinedPair]:
    """Pairs that are likely translations, each sentence in one pair at most.

    Every sentence proposes the one among its `k` nearest on the other side that has the best margin (not the best
    cosine); what both sides propose is pooled and taken greedily, best score first. Equal scores go to the lower
    source index, then to the lower target index.

    A pair below the threshold is dropped before pairs are taken, so it claims no sentence. As pairs are taken from the
    best downwards, that gives the same pairs as dropping it afterwards; a pair exactly at the threshold stays.

    Args:
        source_vectors: `(n, width)`, of length 1.
        target_vectors: `(m, width)`, of length 1.
        k: Size of the neighbourhoods, both ways; cut to the number of sentences.
        margin: `ratio`, `distance` or `absolute`, see `margin_scores`.
        threshold: The lowest score that counts; none by default.
        max_pairs: Keep that many of the best pairs; all by default.

    Returns:
        The pairs, best first; none when one side is empty. Memory grows with `(n + m) * k`.

    Raises:
        XlsrError: `margin`, `k` or `max_pairs` is wrong, or the vectors hold NaN.

    Relations:
        LASER's mining with `retrieval max`, `k` 4, margin `ratio` (its threshold is strict).

    Example:
        >>> vectors = np.eye(3, dtype=np.float32)
        >>> [(pair.source_index, pair.target_index) for pair in mine_pairs(vectors, vectors[[2, 0, 1]], k=2)]
        [(0, 1), (1, 2), (2, 0)]
    """
    if margin not in MARGINS:
        raise XlsrError(f"margin is '{margin}'; {nearest(margin, MARGINS)}")
    if max_pairs is not None and max_pairs < 1:
        raise XlsrError(f"max_pairs is {max_pairs}; give 1 or more, or leave it out for all pairs.")
    source_vectors = as_vectors(source_vectors, "source_vectors")
    target_vectors = as_vectors(target_vectors, "target_vectors")
    if not len(source_vectors) or not len(target_vectors):
        return []
    forward_sim, forward = nearest_neighbours(source_vectors, target_vectors, k)
    backward_sim, backward = nearest_neighbours(target_vectors, source_vectors, k)
    mean_x = forward_sim.mean(axis=1, dtype=np.float64)
    mean_y = backward_sim.mean(axis=1, dtype=np.float64)
    forward_scores = margin_scores(forward_sim, mean_x[:, None], mean_y[forward], margin)
    backward_scores = margin_scores(backward_sim, mean_x[backward], mean_y[:, None], margin)
    sources, targets = np.arange(len(forward)), np.arange(len(backward))
    best_forward, best_backward = forward_scores.argmax(axis=1), backward_scores.argmax(axis=1)
    x = np.concatenate([sources, backward[targets, best_backward]])
    y = np.concatenate([forward[sources, best_forward], targets])
    scores = np.concatenate([forward_scores[sources, best_forward], backward_scores[targets, best_backward]])
    if threshold is not None:
        kept = scores >= threshold
        x, y, scores = x[kept], y[kept], scores[kept]
    return _one_to_one(x, y, scores, max_pairs)


def _one_to_one(x: np.ndarray, y: np.ndarray, scores: np.ndarray, max_pairs: int | None) -> list[MinedPair]:
    order = np.lexsort((y, x, -scores))
    used_sources: set[int] = set()
    used_targets: set[int] = set()
    pairs: list[MinedPair] = []
    for source, target, score in zip(x[order].tolist(), y[order].tolist(), scores[order].tolist(), strict=True):
        if len(pairs) == max_pairs:
            break
        if source not in used_sources and target not in used_targets:
            used_sources.add(source)
            used_targets.add(target)
            pairs.append(MinedPair(source, target, score))
    return pairs
