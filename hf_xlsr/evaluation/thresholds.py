"""Thresholds of a score, and what extraction at each of them gets right."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Thresholds(NamedTuple):
    """The thresholds that separate different scores, from high to low, `(n,)`; at the last one all examples are taken."""

    values: np.ndarray
    taken: np.ndarray
    right: np.ndarray

    @classmethod
    def of(cls, scores: np.ndarray, positive: np.ndarray) -> Thresholds:
        """The thresholds of scores, `positive` being 1 or True for positive examples.

        Examples:
            >>> Thresholds.of(np.array([0.5, 0.9, 0.5, 0.1]), np.array([1, 1, 0, 0]))
            Thresholds(values=array([0.7, 0.3, 0.1]), taken=array([1, 3, 4]), right=array([1, 2, 2]))
        """
        order = np.argsort(-scores, kind="stable")
        ranked = scores[order]
        last = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
        lowest, below = ranked[last], ranked[np.minimum(last + 1, len(ranked) - 1)]
        middle = (lowest + below) / 2
        # Between two adjacent floats there is none.
        return cls(np.where(middle > below, middle, lowest), last + 1, np.cumsum(positive[order])[last])

    def f1(self, positives: int) -> np.ndarray:
        # 2PR / (P + R) with integers only, so that equal values are equal bit by bit.
        return 2 * self.right / (self.taken + positives)

    def accuracy(self, positives: int) -> np.ndarray:
        return (2 * self.right + self.taken[-1] - positives - self.taken) / self.taken[-1]
