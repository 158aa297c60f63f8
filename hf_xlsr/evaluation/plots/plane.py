"""Vectors on a plane, for pictures."""

from __future__ import annotations

import numpy as np
from sklearn.manifold import TSNE

PERPLEXITY = 30.0
SAME = 1e-6  # differences below this part of the largest number are rounding


def on_plane(vectors: np.ndarray, seed: int) -> np.ndarray:
    """Places of vectors on a plane, those of high cosine near each other (t-SNE).

    Args:
        vectors: `(n, width)`, finite; `n` is 2 or more and `width` too.
        seed: Of t-SNE.

    Returns:
        `(n, 2)`; one point for all where the vectors are the same, as those of a collapsed encoder are: scikit-learn
        divides by their spread, and then crashes the process.

    Example:
        >>> on_plane(np.ones((3, 4)), seed=1).tolist()
        [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    """
    if np.ptp(vectors, axis=0).max() <= SAME * np.abs(vectors).max():
        return np.zeros((len(vectors), 2))
    # Perplexity is about the number of neighbours that count: it cannot come near the number of points.
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    plane = TSNE(2, perplexity=perplexity, metric="cosine", init="pca", random_state=seed).fit_transform(vectors)
    return np.asarray(plane)
