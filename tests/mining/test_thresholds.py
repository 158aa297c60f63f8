"""Thresholds from hidden pairs, gold pairs and labels, where the truth is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mining_fakes import NumberEncoder

from hf_xlsr.mining.options import MiningOptions
from hf_xlsr.mining.pipeline import MiningRun, run_mining
from hf_xlsr.mining.thresholds import HiddenPairs, gold_curve, label_curve
from hf_xlsr.utils.errors import XlsrError

TRUE, NOISE, KNOWN = 600, 1400, 600


def world(seed: int) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Two texts of which 600 sentences of 2,000 have a translation, and known pairs of other numbers."""
    order = np.random.default_rng(seed)
    source = [f"en {n}" for n in range(TRUE + NOISE)]
    target = [f"fr {n}" for n in (*range(TRUE), *range(10_000, 10_000 + NOISE))]
    order.shuffle(source)
    order.shuffle(target)
    return source, target, [(f"en {n}", f"fr {n}") for n in range(20_000 + 1000 * seed, 20_000 + 1000 * seed + KNOWN)]


def mined(folder: Path, seed: int, known: bool = True) -> MiningRun:
    source, target, pairs = world(seed)
    encoder = NumberEncoder(noise=0.6)
    options = MiningOptions(batch_size=512)
    return run_mining(source, target, folder, options, encoder=encoder, known=pairs if known else None)


GOLD = [(f"en {n}", f"fr {n}") for n in range(TRUE)]


def f1(values: dict[str, float]) -> float:
    return 2 * values["precision"] * values["recall"] / (values["precision"] + values["recall"])


def test_hidden_pairs_tell_precision_recall_and_the_best_threshold(tmp_path: Path) -> None:
    covered = []
    for seed in range(3):
        run = mined(tmp_path / str(seed), seed)
        assert run.curve is not None and run.curve.recall is not None
        truth = run.gold_curve(GOLD)
        assert truth.recall is not None
        np.testing.assert_allclose(run.curve.pairs, truth.pairs)  # hidden sentences are in no pair
        wanted = truth.precision > 0.5
        assert np.abs(run.curve.precision - truth.precision)[wanted].mean() < 0.06
        assert np.abs(run.curve.recall - truth.recall).mean() < 0.05
        covered.append(((run.curve.low - 0.02 < truth.precision) & (truth.precision < run.curve.high + 0.02))[wanted])
        assert f1(truth.at(run.curve.choose())) > truth.f1.max() - 0.02
        at = truth.at(run.curve.choose(precision=0.9))
        assert abs(at["precision"] - 0.9) < 0.06
        inside = (run.curve.recall_low - 0.02 < truth.recall) & (truth.recall < run.curve.recall_high + 0.02)
        assert inside.mean() > 0.8
    assert np.concatenate(covered).mean() > 0.85


def test_sample_of_known_pairs() -> None:
    pairs = [(f"a  {n}", f"b {n}") for n in range(300)]
    hidden = HiddenPairs.sample([*pairs, ("a 7", "other"), ("", "b"), ("c", "b 9")], count=200, seed=3)
    assert hidden.complete == 100 and len(hidden.source) == len(hidden.target) == 150
    numbers = [[int(text[2:]) for text in side] for side in (hidden.source, hidden.target)]
    assert numbers[0][:100] == numbers[1][:100]
    assert not set(numbers[0][100:]) & set(numbers[1][100:])
    with pytest.raises(XlsrError, match="79"):
        HiddenPairs.sample(pairs[:79])


def test_gold_by_hand() -> None:
    scores = np.array([2.0, 1.9, 1.8, 1.7, 1.6] * 8)
    right = np.array([True, True, True, False, False] * 8)
    curve = gold_curve(right, right, 30, scores)
    np.testing.assert_allclose(curve.threshold, [1.6, 1.7, 1.8, 1.9, 2.0])
    np.testing.assert_allclose(curve.precision, [24 / 40, 24 / 32, 1, 1, 1])
    np.testing.assert_allclose(curve.recall, [0.8, 0.8, 0.8, 16 / 30, 8 / 30])
    repeated = gold_curve(right, right & (np.arange(40) < 20), 30, scores)  # each gold pair is mined twice
    np.testing.assert_allclose(repeated.precision, curve.precision)
    np.testing.assert_allclose(repeated.recall, curve.recall / 2)
    assert curve.at(curve.choose())["threshold"] == 1.8 and curve.at(curve.choose(0.7))["threshold"] == 1.7
    assert (curve.low < curve.precision).all() and (curve.high >= curve.precision - 1e-12).all()


def test_labels_tell_the_precision() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(1.1, 0.1, 5000)
    true = rng.random(5000) < 1 / (1 + np.exp(-(scores - 1.1) / 0.03))
    chosen = rng.choice(5000, 300, replace=False)
    rows = [{"score": score, "source": f"{n}\tone", "target": "two"} for n, score in enumerate(scores)]
    labels = {(f"{n} one", "two"): bool(true[n]) for n in chosen}  # as the page saves them
    curve = label_curve(labels, rows)
    truth = gold_curve(true, true, int(true.sum()), scores)
    assert curve.recall is None and np.abs(curve.precision - truth.precision).max() < 0.06
    assert ((curve.low <= truth.precision) & (truth.precision <= curve.high)).mean() > 0.8
    with pytest.raises(XlsrError, match="precision"):
        curve.choose()
    with pytest.raises(XlsrError, match="19"):
        label_curve(dict(list(labels.items())[:19]), rows)
