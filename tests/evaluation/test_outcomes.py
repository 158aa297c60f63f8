from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score, f1_score

from hf_xlsr.evaluation.outcomes import STATISTICS, Outcomes, interval, p_value

RNG = np.random.default_rng(1)
X = RNG.normal(size=60).round(1)
Y = RNG.normal(size=60).round(1)
LABELS = RNG.random(60) < 0.4
PREDICTED = RNG.random(60) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "columns", "expected"),
    [
        ("mean", (LABELS,), LABELS.mean()),
        ("f1", (PREDICTED, LABELS), f1_score(LABELS, PREDICTED)),
        ("pearson", (X, Y), stats.pearsonr(X, Y).statistic),
        ("spearman", (X, Y), stats.spearmanr(X, Y).statistic),
        ("average_precision", (X, LABELS), average_precision_score(LABELS, X)),
    ],
)
def test_statistic(name: str, columns: tuple[np.ndarray, ...], expected: float) -> None:
    outcomes = Outcomes(name, columns)
    assert outcomes.value() == pytest.approx(expected, abs=1e-12)

    stacked = [np.stack([column, np.roll(column, 1)]) for column in columns]
    assert STATISTICS[name](*stacked) == pytest.approx([expected, expected], abs=1e-12)

    low, high = interval(outcomes)
    assert low < expected < high
    assert interval(outcomes) == (low, high)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "truth"), [("mean", 0.8), ("spearman", None), ("f1", None)])
def test_coverage(name: str, truth: float | None) -> None:
    """Of 400 data sets of 150 examples, the intervals of about 95 % contain the value of the population."""
    rng = np.random.default_rng(7)

    def draw(count: int) -> Outcomes:
        if name == "mean":
            return Outcomes(name, (rng.random(count) < 0.8,))
        x = rng.normal(size=count)
        y = x + rng.normal(size=count)
        if name == "f1":
            return Outcomes(name, (x > 0, y > 0))
        return Outcomes(name, (x, y))

    if truth is None:
        truth = draw(400_000).value()

    covering_intervals = 0
    for seed in range(400):
        low, high = interval(draw(150), seed=seed, resamples=300)
        covering_intervals += low <= truth <= high
    # The percentile method is a little short; four standard errors are 0.044.
    assert 0.91 <= covering_intervals / 400 <= 0.98


@pytest.mark.slow
def test_p_values() -> None:
    """Equal encoders differ significantly in about one of twenty tests, unequal ones nearly always."""
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(200, 100))

    def cosines(noise: float, row: int) -> Outcomes:
        return Outcomes("spearman", (scores[row] + noise * rng.normal(size=100), scores[row]))

    def significant_share(first_noise: float, second_noise: float, tests: int) -> float:
        significant_tests = 0
        for row in range(tests):
            p = p_value(cosines(first_noise, row), cosines(second_noise, row), resamples=300)
            significant_tests += p < 0.05
        return significant_tests / tests

    assert significant_share(1.0, 1.0, tests=200) < 0.11
    assert significant_share(0.3, 1.5, tests=50) > 0.95


def test_shares_are_compared_by_the_exact_test() -> None:
    first = Outcomes("mean", (LABELS,))
    second = Outcomes("mean", (PREDICTED,))
    wins = int((LABELS & ~PREDICTED).sum())
    losses = int((PREDICTED & ~LABELS).sum())
    expected = pytest.approx(stats.binomtest(wins, wins + losses).pvalue)
    assert p_value(first, second) == expected
    assert p_value(second, first) == expected
