"""How well scores rank good pairs above bad ones, with intervals by the bootstrap over lines."""

from __future__ import annotations

import numpy as np

LEVEL = 95.0  # per cent of the resamples inside an interval
TINY = 1e-12


def ranking(scores: np.ndarray, good: np.ndarray, bad: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Area under the ROC curve, and average precision of the good ones where both classes weigh the same.

    Args:
        scores: `(pairs,)`; equal ones are no order.
        good: Weight of each pair as a good one in each resample, `(resamples, pairs)`; 0 for the bad ones.
        bad: Its weight as a bad one.

    Returns:
        Both `(resamples,)`, from 0 to 1.

    Examples:
        >>> good, bad = np.array([[1.0, 1.0, 0.0]]), np.array([[0.0, 0.0, 1.0]])
        >>> auc, precision = ranking(np.array([0.9, 0.1, 0.5]), good, bad)
        >>> float(auc[0]), float(precision[0])
        (0.5, 0.75)
    """
    order = np.argsort(-scores, kind="stable")
    first_of_equals = np.flatnonzero(np.diff(scores[order], prepend=np.inf))
    good = np.add.reduceat(good[:, order], first_of_equals, axis=1)
    bad = np.add.reduceat(bad[:, order], first_of_equals, axis=1)
    good = good / np.maximum(good.sum(axis=1, keepdims=True), TINY)
    bad = bad / np.maximum(bad.sum(axis=1, keepdims=True), TINY)

    good_until = np.cumsum(good, axis=1)
    bad_until = np.cumsum(bad, axis=1)
    auc = (bad * (good_until - good / 2)).sum(axis=1)
    precision = good_until / np.maximum(good_until + bad_until, TINY)
    return auc, (good * precision).sum(axis=1)


def line_weights(num_lines: int, resamples: int, seed: int) -> np.ndarray:
    """How often each line is drawn, `(1 + resamples, lines)`: once in the first row, then with replacement."""
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(num_lines, np.full(num_lines, 1 / num_lines), size=resamples)
    return np.concatenate([np.ones((1, num_lines)), drawn])


def with_interval(values: np.ndarray) -> tuple[float, float, float]:
    """The value of the first row of `line_weights`, and the ends of its 95 % interval by the others."""
    tail = (100 - LEVEL) / 2
    low, high = np.percentile(values[1:], [tail, 100 - tail])
    return float(values[0]), float(low), float(high)
