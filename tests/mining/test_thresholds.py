"""Thresholds from hidden pairs and gold pairs, where the truth is known."""

from __future__ import annotations

from pathlib import Path
from statistics import harmonic_mean

import numpy as np
import pytest
from mining_fakes import NumberEncoder

from hf_xlsr.mining.hidden_pairs import HiddenPairs, hidden_curve
from hf_xlsr.mining.options import MiningOptions
from hf_xlsr.mining.pipeline import MiningRun, run_mining
from hf_xlsr.mining.search.extraction import MinedBitext
from hf_xlsr.mining.thresholds import gold_curve
from hf_xlsr.utils.errors import XlsrError

TRUE = 600
NOISE = 1400
KNOWN = 600


def translations(start: int, count: int) -> list[tuple[str, str]]:
    return [(f"en {number}", f"fr {number}") for number in range(start, start + count)]


GOLD = translations(0, TRUE)


def world(seed: int) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Two texts of which 600 sentences of 2,000 have a translation, and known pairs of other numbers."""
    numbers = np.arange(TRUE + NOISE)
    target_numbers = np.where(numbers < TRUE, numbers, numbers + 10_000)
    rng = np.random.default_rng(seed)
    source = [f"en {number}" for number in rng.permutation(numbers)]
    target = [f"fr {number}" for number in rng.permutation(target_numbers)]
    known = translations(20_000 + 1000 * seed, KNOWN)
    return source, target, known


def mined(folder: Path, seed: int) -> MiningRun:
    source, target, known = world(seed)
    encoder = NumberEncoder(noise=0.6)
    return run_mining(source, target, folder, MiningOptions(batch_size=512), encoder=encoder, known=known)


def f1(values: dict[str, float]) -> float:
    return harmonic_mean([values["precision"], values["recall"]])


def contains(low: np.ndarray, truth: np.ndarray, high: np.ndarray) -> np.ndarray:
    return (low <= truth) & (truth <= high)


@pytest.mark.slow
def test_hidden_pairs_tell_precision_recall_and_the_best_threshold(tmp_path: Path) -> None:
    is_covered = []
    for seed in range(3):
        run = mined(tmp_path / str(seed), seed)
        truth = run.gold_curve(GOLD)
        curve = run.curve
        assert curve is not None
        assert curve.recall is not None
        assert truth.recall is not None
        np.testing.assert_allclose(curve.pairs, truth.pairs)  # hidden sentences are in no pair

        is_likely = truth.precision > 0.5
        precision_error = np.abs(curve.precision - truth.precision)
        assert precision_error[is_likely].mean() < 0.06
        is_covered.extend(contains(curve.low - 0.02, truth.precision, curve.high + 0.02)[is_likely])

        recall_error = np.abs(curve.recall - truth.recall)
        assert recall_error.mean() < 0.05
        assert contains(curve.recall_low - 0.02, truth.recall, curve.recall_high + 0.02).mean() > 0.8

        at_best_f1 = truth.at(curve.choose())
        assert f1(at_best_f1) > truth.f1.max() - 0.02
        at_precision = truth.at(curve.choose(precision=0.9))
        assert abs(at_precision["precision"] - 0.9) < 0.06

    assert np.mean(is_covered) > 0.85


def test_sample_of_known_pairs() -> None:
    pairs = [(f"a  {number}", f"b {number}") for number in range(300)]
    unusable = [("a 7", "other"), ("", "b"), ("c", "b 9")]

    hidden = HiddenPairs.sample(pairs + unusable, count=200, seed=3)

    sources = [int(text[2:]) for text in hidden.source]
    targets = [int(text[2:]) for text in hidden.target]
    assert len(sources) == 150
    assert len(targets) == 150
    assert hidden.complete == 100
    assert sources[:100] == targets[:100]
    assert not set(sources[100:]) & set(targets[100:])

    with pytest.raises(XlsrError, match="79"):
        HiddenPairs.sample(pairs[:79])


def test_gold_by_hand() -> None:
    scores = np.array([2.0, 1.9, 1.8, 1.7, 1.6] * 8)
    right = np.array([True, True, True, False, False] * 8)

    curve = gold_curve(right, right, 30, scores)

    np.testing.assert_allclose(curve.threshold, [1.6, 1.7, 1.8, 1.9, 2.0])
    np.testing.assert_allclose(curve.precision, [24 / 40, 24 / 32, 1, 1, 1])
    np.testing.assert_allclose(curve.recall, [0.8, 0.8, 0.8, 16 / 30, 8 / 30])
    assert (curve.low < curve.precision).all()
    assert (curve.high >= curve.precision - 1e-12).all()
    best = curve.at(curve.choose())
    assert best["threshold"] == 1.8
    at_precision = curve.at(curve.choose(0.7))
    assert at_precision["threshold"] == 1.7

    is_first = right & (np.arange(40) < 20)  # each gold pair is mined twice
    repeated = gold_curve(right, is_first, 30, scores)
    np.testing.assert_allclose(repeated.precision, curve.precision)
    np.testing.assert_allclose(repeated.recall, curve.recall / 2)


def test_intervals_are_those_of_wilson() -> None:
    """By the formula, at 95 %: 24 of 40 mined pairs are right, 24 of 30 gold pairs are mined."""
    right = np.array([True] * 24 + [False] * 16)
    curve = gold_curve(right, right, 30, np.ones(40))

    assert curve.low[0] == pytest.approx(0.44604, abs=1e-4)
    assert curve.high[0] == pytest.approx(0.73652, abs=1e-4)
    assert curve.recall_low[0] == pytest.approx(0.62691, abs=1e-4)
    assert curve.recall_high[0] == pytest.approx(0.90496, abs=1e-4)


@pytest.mark.slow
def test_interval_of_hidden_pairs_covers_the_truth() -> None:
    """Most intervals contain the precision of what was mined; half of them would at a level of 50 %."""
    lines = np.arange(1000)
    hidden_lines = np.arange(1000, 1200)
    texts = [f"text {n}" for n in range(150)]
    hidden = HiddenPairs(texts, texts, 100)
    numbers = set(range(150))
    # A sentence without translation is mined with a line of the other text.
    source = np.r_[lines, hidden_lines[:150], lines[300:350]]
    target = np.r_[lines, hidden_lines[:100], lines[350:400], hidden_lines[100:150]]

    covering_intervals = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        true = rng.normal(1.2, 0.1, 300)
        false = rng.normal(1.0, 0.1, 700)
        hits = rng.normal(1.2, 0.1, 100)
        without_translation = rng.normal(1.0, 0.1, 100)
        scores = np.r_[true, false]
        mined = MinedBitext(source, target, np.r_[scores, hits, without_translation])

        curve = hidden_curve(hidden, mined, (1000, 1000), (1000, 1000), (numbers, numbers), scores)

        point = int(np.searchsorted(curve.threshold, 1.1))
        threshold = curve.threshold[point]
        truth = (true >= threshold).sum() / (scores >= threshold).sum()
        covering_intervals += curve.low[point] <= truth <= curve.high[point]

    assert covering_intervals >= 8
