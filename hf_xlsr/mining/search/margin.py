"""Margin scoring of sentence pairs (Artetxe and Schwenk, 2019)."""

from __future__ import annotations

import numpy as np

from hf_xlsr.utils.errors import require_choice

MARGINS = ("ratio", "distance", "absolute")
SMALLEST_MEAN = 1e-6


def margin_scores(
    forward_sim: np.ndarray, mean_x: np.ndarray, mean_y: np.ndarray, margin: str = "ratio"
) -> np.ndarray:
    r"""Similarity of pairs against the neighbourhoods of their two sentences, float64.

    With `a = \cos(x, y)` and `b` the average of the two means: `ratio` is `a / b`, `distance` `a - b`, `absolute` `a`.
    In `ratio` a `b` below 1e-6, which real encoders hardly give, is raised to it, so that a better cosine always means
    a better score. stopes uses twice the cosine: its `ratio` equals this one, its `distance` is twice this one.

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
    similarity, average = np.broadcast_arrays(
        np.asarray(forward_sim, np.float64), (np.asarray(mean_x, np.float64) + np.asarray(mean_y, np.float64)) / 2
    )
    if margin == "ratio":
        return similarity / np.maximum(average, SMALLEST_MEAN)
    return similarity - average if margin == "distance" else similarity.copy()
