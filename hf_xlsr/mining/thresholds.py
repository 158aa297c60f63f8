"""Precision and recall of scored pairs by threshold, and their estimate from gold pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binomtest

from hf_xlsr.utils.errors import XlsrError

POINTS = 200  # of a curve
FEWEST = 20  # known or gold pairs


@dataclass(frozen=True)
class PrecisionCurve:
    """Precision and recall (None if unknown) with 95 % intervals, of the `pairs` at or above each threshold.

    Arrays are `(points,)`, thresholds ascend, and `basis` says what the estimate rests on. The precision is NaN at
    thresholds of which labels say nothing.
    """

    threshold: np.ndarray
    pairs: np.ndarray
    basis: str
    precision: np.ndarray
    low: np.ndarray
    high: np.ndarray
    recall: np.ndarray | None = None
    recall_low: np.ndarray | None = None
    recall_high: np.ndarray | None = None

    @property
    def f1(self) -> np.ndarray:
        assert self.recall is not None, "labels give no recall"
        f1: np.ndarray = 2 * self.precision * self.recall / np.maximum(self.precision + self.recall, 1e-12)
        return f1

    def choose(self, precision: float | None = None) -> int:
        """Index of the threshold with the best F1 or, given a precision, of the lowest threshold that reaches it."""
        if precision is None:
            if self.recall is None:
                raise XlsrError("Labels give no recall, so no best F1. Set the `precision` you want (--precision).")
            return int(self.f1.argmax())

        if not 0 < precision <= 1:
            raise XlsrError(f"`precision` must be above 0 and at most 1, got {precision:g}.")
        reached = np.flatnonzero(self.precision >= precision)
        if not len(reached):
            best = np.nanmax(self.precision)
            raise XlsrError(f"`precision` {precision:g} is above the best estimate, {best:.3f}. Set a lower one.")

        lowest = int(reached[0])
        if lowest and np.isnan(self.precision[lowest - 1]):
            raise XlsrError(
                f"`precision` {precision:g} is reached by all pairs near labels. Label pairs below "
                f"{self.threshold[lowest]:.4f} in the report, too."
            )
        return lowest

    def chosen(self, threshold: float | None, precision: float | None = None) -> tuple[float, dict[str, Any]]:
        """The threshold, or the one that `choose` finds if it is None, and the figures there."""
        if threshold is None:
            index = self.choose(precision)
            threshold = float(self.threshold[index])
        else:
            # The lowest score of at least the threshold.
            index = int(np.searchsorted(self.threshold[:-1], threshold))
            if np.isnan(self.precision[index]):
                raise XlsrError(
                    f"The labels do not reach the threshold {threshold:g}. Label pairs near it, on both sides."
                )
        return threshold, self.at(index) | {"basis": self.basis}

    def at(self, index: int) -> dict[str, Any]:
        """All figures at one threshold."""
        return {name: values[index] for name, values in self.values().items() if isinstance(values, list)}

    def values(self) -> dict[str, Any]:
        """The curve as plain values, for JSON: None instead of NaN."""
        values = dict(vars(self))
        for name, array in values.items():
            if isinstance(array, np.ndarray):
                values[name] = [None if np.isnan(value) else value for value in array.tolist()]
        return values


def require_enough(name: str, what: str, count: int, fewest: int = FEWEST) -> None:
    if count < fewest:
        raise XlsrError(f"`{name}` must have at least {fewest} {what}, got {count}.")


def gold_curve(
    right: np.ndarray,
    first: np.ndarray,
    total: int,
    scores: np.ndarray,
) -> PrecisionCurve:
    """The curve from gold pairs that are in the texts, `total` in all; every other mined pair counts as false.

    A gold pair that was mined several times is `right` each time, and found the `first` time.
    """
    require_enough("gold", "pairs that are in the texts", total)
    grid = score_grid(scores)
    pairs = pairs_at_least(scores, grid)
    precision = wilson_shares(pairs_at_least(scores[right], grid), pairs)
    recall = wilson_shares(pairs_at_least(scores[first], grid), total)
    return PrecisionCurve(grid, pairs, f"{total:,} gold pairs", *precision, *recall)


def wilson_shares(counts: np.ndarray, totals: np.ndarray | int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares, and both ends of their 95 % intervals (Wilson)."""
    intervals = []
    for count, total in np.broadcast(counts, totals):
        intervals.append(binomtest(int(count), int(total)).proportion_ci(method="wilson"))
    low, high = np.array(intervals).T
    return counts / totals, low, high


def score_grid(scores: np.ndarray) -> np.ndarray:
    """The thresholds of a curve, `(points,)`: at most 200 of the scores, with about as many pairs between them."""
    return np.unique(np.quantile(scores, np.linspace(0, 1, POINTS), method="higher"))


def pairs_at_least(scores: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Number of scores of at least each point, float64."""
    below = np.searchsorted(np.sort(scores), grid)
    return (len(scores) - below).astype(np.float64)
