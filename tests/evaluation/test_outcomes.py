from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score, f1_score

from hf_xlsr.evaluation.outcomes import STATISTICS, Outcomes, interval, p_value

RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=60).round(1), RNG.normal(size=60).round(1)
LABELS, PREDICTED = RNG.random(60) < 0.4, RNG.random(60) < 0.5


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
    assert Outcomes(name, columns).value() == pytest.approx(expected, abs=1e-12)
    stacked = STATISTICS[name](*(np.stack([column, np.roll(column, 1)]) for column in columns))
    assert stacked == pytest.approx([expected, expected], abs=1e-12)
    low, high = interval(Outcomes(name, columns))
    assert low < expected < high and interval(Outcomes(name, columns)) == (low, high)


@pytest.mark.parametrize(("name", "truth"), [("mean", 0.8), ("spearman", None), ("f1", None)])
def test_coverage(name: str, truth: float | None) -> None:
    """Of 400 data sets of 150 examples, the intervals of about 95 % contain the value of the population."""
    rng = np.random.default_rng(7)

    def draw(count: int) -> Outcomes:
        if name == "mean":
            return Outcomes(name, (rng.random(count) < 0.8,))
        x = rng.normal(size=count)
        y = x + rng.normal(size=count)
        return Outcomes(name, (x, y) if name == "spearman" else (x > 0, y > 0))

    expected = draw(400_000).value() if truth is None else truth
    found = [interval(draw(150), seed=seed, resamples=300) for seed in range(400)]
    covered = np.mean([low <= expected <= high for low, high in found])
    assert 0.91 <= covered <= 0.98  # the percentile method is a little short; four standard errors are 0.044


def test_p_values() -> None:
    """Equal encoders differ significantly in about one of twenty tests, unequal ones nearly always."""
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(200, 100))

    def cosines(noise: float, row: int) -> Outcomes:
        return Outcomes("spearman", (scores[row] + noise * rng.normal(size=100), scores[row]))

    equal = [p_value(cosines(1.0, row), cosines(1.0, row), resamples=300) for row in range(200)]
    better = [p_value(cosines(0.3, row), cosines(1.5, row), resamples=300) for row in range(50)]
    assert np.mean(np.array(equal) < 0.05) < 0.11 and np.mean(np.array(better) < 0.05) > 0.95
    shares = Outcomes("mean", (LABELS,)), Outcomes("mean", (PREDICTED,))
    wins, losses = int((LABELS & ~PREDICTED).sum()), int((PREDICTED & ~LABELS).sum())
    assert p_value(*shares) == pytest.approx(stats.binomtest(wins, wins + losses).pvalue) == p_value(*shares[::-1])
