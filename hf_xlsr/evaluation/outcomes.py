"""Outcomes of single examples: intervals of what was measured on them, and tests of differences between encoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

LEVEL = 0.95
RESAMPLES = 1000
# Numbers of one batch of resamples: 128 MB.
BATCH_NUMBERS = 2**24


class Outcomes(NamedTuple):
    """What a value was computed from: the name of a function in `STATISTICS` and what it takes, each `(examples,)`."""

    statistic: str
    columns: tuple[np.ndarray, ...]

    def value(self) -> float:
        return float(STATISTICS[self.statistic](*self.columns))


def mean(values: np.ndarray) -> np.ndarray:
    """Mean over the last axis, which holds the examples in every statistic."""
    means: np.ndarray = values.mean(axis=-1)
    return means


def share(counts: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Ratio of two sums of counts."""
    shares: np.ndarray = counts.sum(axis=-1) / np.maximum(totals.sum(axis=-1), 1)
    return shares


def micro_f1(right: np.ndarray, predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """F1 of counts that are added up."""
    totals = predicted.sum(axis=-1) + gold.sum(axis=-1)
    values: np.ndarray = 2.0 * right.sum(axis=-1) / np.maximum(totals, 1)
    return values


def f1(predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return micro_f1(predicted & truth, predicted, truth)


def pearson(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pearson's correlation; 0 where it is not defined."""
    x_varies = np.ptp(x, axis=-1) > 0
    y_varies = np.ptp(y, axis=-1) > 0
    x = x - x.mean(axis=-1, keepdims=True)
    y = y - y.mean(axis=-1, keepdims=True)
    squares = (x * x).sum(axis=-1) * (y * y).sum(axis=-1)
    norms = np.where(x_varies & y_varies, np.sqrt(squares), np.inf)
    products = (x * y).sum(axis=-1)
    correlations: np.ndarray = np.clip(products / norms, -1, 1)
    return correlations


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's correlation, equal values sharing their mean rank; 0 where it is not defined."""
    from scipy.stats import rankdata

    return pearson(rankdata(x, axis=-1), rankdata(y, axis=-1))


def average_precision(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Average precision of label 1 by falling score; examples of equal score are ranked together."""
    order = np.argsort(-scores, axis=-1, kind="stable")
    ranked = np.take_along_axis(scores, order, axis=-1)
    is_positive = np.take_along_axis(labels, order, axis=-1) == 1
    right = is_positive.cumsum(axis=-1)
    count = scores.shape[-1]

    # Each example has the precision at the last one of its score.
    last = np.full(scores.shape, count - 1)
    last[..., :-1] = np.where(ranked[..., :-1] != ranked[..., 1:], np.arange(count - 1), count - 1)
    last = np.minimum.accumulate(last[..., ::-1], axis=-1)[..., ::-1]
    precisions = np.take_along_axis(right / np.arange(1, count + 1), last, axis=-1)

    sums = (precisions * is_positive).sum(axis=-1)
    values: np.ndarray = sums / np.maximum(right[..., -1], 1)
    return values


def max_average_precision(*columns: np.ndarray) -> np.ndarray:
    """The best average precision of several scores; the last column has the labels."""
    *scores, labels = columns
    precisions = [average_precision(score, labels) for score in scores]
    best: np.ndarray = np.max(precisions, axis=0)
    return best


MEANS = ("mean", "unbounded_mean")
NOT_SHARES = ("pearson", "spearman", "unbounded_mean")
STATISTICS: dict[str, Callable[..., np.ndarray]] = {
    "mean": mean,
    "unbounded_mean": mean,
    "share": share,
    "f1": f1,
    "micro_f1": micro_f1,
    "pearson": pearson,
    "spearman": spearman,
    "average_precision": average_precision,
    "max_average_precision": max_average_precision,
}


def interval(outcomes: Outcomes, *, seed: int = 0, resamples: int = RESAMPLES) -> tuple[float, float]:
    """The 95 % interval of a value.

    That of a share is exact (Clopper and Pearson, 1934). Others are percentiles of the bootstrap over examples (Efron and
    Tibshirani, 1993). Where all resamples are perfect, or none has anything right, the interval is that of such a share.

    Examples:
        >>> low, high = interval(Outcomes("mean", (np.ones(300, bool),)))
        >>> round(low, 3), high
        (0.988, 1.0)
    """
    first = outcomes.columns[0]
    if outcomes.statistic == "mean" and first.dtype == bool:
        return exact_interval(int(first.sum()), len(first))
    if outcomes.statistic == "share":
        return exact_interval(int(first.sum()), int(outcomes.columns[1].sum()))

    bootstrap = _bootstrap(outcomes.columns, STATISTICS[outcomes.statistic], seed, resamples)
    low, high = bootstrap.confidence_interval
    return _not_degenerate(float(low), float(high), [outcomes])


def mean_interval(
    outcomes_of_languages: Sequence[Outcomes], *, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """The 95 % interval of the unweighted mean of values, of languages or tasks, by the bootstrap over examples.

    Languages with as many examples are resampled alike, as their rows may be translations of each other.
    """
    total = np.zeros(resamples)
    for outcomes in outcomes_of_languages:
        statistic = STATISTICS[outcomes.statistic]
        bootstrap = _bootstrap(outcomes.columns, statistic, [seed, len(outcomes.columns[0])], resamples)
        total += bootstrap.bootstrap_distribution

    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(total / len(outcomes_of_languages), [tail, 100 - tail])
    return _not_degenerate(float(low), float(high), outcomes_of_languages)


def exact_interval(right: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share by Clopper and Pearson (1934); 0 to 1 without examples."""
    from scipy.stats import binomtest

    if total == 0:
        return 0.0, 1.0
    low, high = binomtest(right, total).proportion_ci(LEVEL, method="exact")
    return float(low), float(high)


def _not_degenerate(low: float, high: float, outcomes_of_languages: Sequence[Outcomes]) -> tuple[float, float]:
    """The interval, or that of a share of the fewest examples where all resamples are 0 or all are 1."""
    if low != high or low not in (0, 1):
        return low, high
    totals = []
    for outcomes in outcomes_of_languages:
        if outcomes.statistic in NOT_SHARES:
            return low, high
        is_mean = outcomes.statistic == "mean"
        # The last column of the others counts the gold examples.
        totals.append(len(outcomes.columns[0]) if is_mean else int(outcomes.columns[-1].sum()))
    fewest = min(totals)
    return exact_interval(round(low * fewest), fewest)


def p_value(first: Outcomes, second: Outcomes, *, seed: int = 0, resamples: int = RESAMPLES) -> float:
    """Two-sided p-value of the difference between two encoders on the same examples, in the same order.

    Shares of right answers are compared by McNemar's exact test (1947), other means by the paired t-test, F1 and
    correlations by the paired bootstrap (Koehn, 2004), whose smallest p-value is about `2 / resamples`.
    """
    if first.statistic in MEANS:
        return _p_value_of_means(first.columns[0], second.columns[0])

    differences = _resampled_differences(first, second, seed, resamples).bootstrap_distribution
    tail = min((differences <= 0).sum(), (differences >= 0).sum())
    two_sided = 2 * (tail + 1) / (resamples + 1)
    return float(min(1.0, two_sided))


def difference_interval(
    first: Outcomes, second: Outcomes, *, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """The 95 % interval of `second - first` on the same examples, by the paired bootstrap, percentile method."""
    low, high = _resampled_differences(second, first, seed, resamples).confidence_interval
    return float(low), float(high)


def _resampled_differences(first: Outcomes, second: Outcomes, seed: int, resamples: int) -> Any:
    """The bootstrap of the difference `first - second`; a resample draws the same examples for both."""
    statistic = STATISTICS[first.statistic]
    column_count = len(first.columns)

    def difference(*columns: np.ndarray) -> Any:
        return statistic(*columns[:column_count]) - statistic(*columns[column_count:])

    return _bootstrap((*first.columns, *second.columns), difference, seed, resamples)


def _p_value_of_means(first: np.ndarray, second: np.ndarray) -> float:
    from scipy.stats import binomtest, ttest_rel

    if first.dtype == second.dtype == bool:
        wins = int((first & ~second).sum())
        losses = int((second & ~first).sum())
        if wins == losses:
            return 1.0
        return float(binomtest(wins, wins + losses).pvalue)

    if np.ptp(first - second) > 0:
        return float(ttest_rel(first, second).pvalue)
    return float(np.array_equal(first, second))


def holm(p_values: list[float]) -> list[float]:
    """P-values corrected for the number of comparisons (Holm, 1979), in the given order.

    Examples:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    steps = np.sort(p_values) * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return list(map(float, corrected))


def _bootstrap(
    columns: tuple[np.ndarray, ...], statistic: Callable[..., Any], seed: int | list[int], resamples: int
) -> Any:
    from scipy.stats import bootstrap

    def vectorized(*samples: np.ndarray, axis: int = -1) -> Any:
        return statistic(*samples)  # samples are in the last axis

    return bootstrap(
        columns,
        vectorized,
        paired=True,
        vectorized=True,
        n_resamples=resamples,
        batch=max(1, BATCH_NUMBERS // (len(columns) * len(columns[0]))),
        confidence_level=LEVEL,
        method="percentile",
        rng=seed,
    )


class Thresholds(NamedTuple):
    """The thresholds that separate different scores, from high to low, `(n,)`; at the last one all examples are taken."""

    values: np.ndarray
    taken: np.ndarray
    right: np.ndarray

    @classmethod
    def of(cls, scores: np.ndarray, positive: np.ndarray) -> Thresholds:
        """The thresholds of scores, `positive` being 1 or True for positive examples."""
        order = np.argsort(-scores, kind="stable")
        ranked = scores[order]
        right = np.cumsum(positive[order])

        # Of each run of equal scores the last, and the score that follows.
        final = len(ranked) - 1
        is_followed_by_lower = ranked[1:] != ranked[:-1]
        last = np.append(np.flatnonzero(is_followed_by_lower), final)
        lowest = ranked[last]
        below = ranked[np.minimum(last + 1, final)]

        # Between two adjacent floats there is none.
        middle = (lowest + below) / 2
        values = np.where(middle > below, middle, lowest)
        return cls(values, last + 1, right[last])

    def f1(self, positives: int) -> np.ndarray:
        """F1 at each threshold, of as many positive examples in all."""
        # 2PR / (P + R) with integers only, so that equal values are equal bit by bit.
        values: np.ndarray = 2 * self.right / (self.taken + positives)
        return values

    def accuracy(self, positives: int) -> np.ndarray:
        """Accuracy at each threshold, of as many positive examples in all."""
        count = self.taken[-1]
        values: np.ndarray = (2 * self.right + count - positives - self.taken) / count
        return values
