"""Area under the curve, average precision and their intervals against slow twins."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmarks.ranking import line_weights, ranking, with_interval


def naive_area(scores: np.ndarray, good: np.ndarray, bad: np.ndarray) -> float:
    """The weighted share of pairs of a good and a bad row in the right order; equal scores count half."""
    right = 0.0
    total = 0.0
    for first, good_weight in zip(scores, good, strict=True):
        for second, bad_weight in zip(scores, bad, strict=True):
            weight = good_weight * bad_weight
            total += weight
            right += weight * ((first > second) + (first == second) / 2)
    return right / total


def example(rng: np.random.Generator, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    is_good = rng.random(40) < 0.6
    scores = rng.normal(size=40) + is_good
    return (scores.round() if ties else scores), is_good


@pytest.mark.parametrize("ties", [False, True])
def test_area_and_precision_equal_slow_twins(ties: bool) -> None:
    rng = np.random.default_rng(1)
    scores, is_good = example(rng, ties)
    weights = line_weights(40, resamples=5, seed=2)

    areas, precisions = ranking(scores, weights * is_good, weights * ~is_good)

    for row, area, precision in zip(weights, areas, precisions, strict=True):
        assert area == pytest.approx(naive_area(scores, row * is_good, row * ~is_good))
        assert area == pytest.approx(roc_auc_score(is_good, scores, sample_weight=row))
        balance = np.where(is_good, row / row[is_good].sum(), row / row[~is_good].sum())
        assert precision == pytest.approx(average_precision_score(is_good, scores, sample_weight=balance))


def test_interval_equals_that_of_drawn_rows() -> None:
    rng = np.random.default_rng(3)
    scores, is_good = example(rng, ties=False)
    weights = line_weights(40, resamples=2000, seed=4)

    value, low, high = with_interval(ranking(scores, weights * is_good, weights * ~is_good)[0])

    drawn_areas = []
    for _ in range(2000):
        rows = rng.integers(0, 40, 40)
        drawn_areas.append(roc_auc_score(is_good[rows], scores[rows]))
    assert value == pytest.approx(roc_auc_score(is_good, scores))
    assert (low, high) == pytest.approx(np.percentile(drawn_areas, [2.5, 97.5]), abs=0.02)


def test_first_weights_are_the_lines_themselves() -> None:
    weights = line_weights(10, resamples=7, seed=1)
    assert weights.shape == (8, 10)
    assert (weights[0] == 1).all()
    assert (weights.sum(axis=1) == 10).all()
