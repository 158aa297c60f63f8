"""`sts` by hand, against SciPy and mteb, and SimCSE's rules."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sentence_transformers import SentenceTransformer

from hf_xlsr.evaluation.outcomes import pearson, spearman
from hf_xlsr.evaluation.protocols.sts import sts

Rows = list[dict[str, Any]]


class AngleEncoder:
    """The text `0.3` is a vector at the angle 0.3; the cosine of two is that of the difference."""

    def __init__(self, routes: tuple[str, ...] = ()):
        self.routes = routes
        self.texts: list[str] = []
        self.tasks: list[str | None] = []

    def encode(self, texts: list[str], **kwargs: Any) -> np.ndarray:
        self.texts += texts
        self.tasks.append(kwargs.get("task"))
        angles = np.array([float(text.split()[0]) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def row(angle: float, score: Any, **more: Any) -> dict[str, Any]:
    """Sentences whose cosine is that of the angle."""
    return {"sentence1": "0", "sentence2": f"{angle}", "score": score, **more}


def noisy(count: int, subsets: int, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 11, count) / 2
    angles = (5 - gold) * 0.5 + rng.normal(size=count) * 0.4
    sizes = rng.integers(0, subsets, count)
    return [
        row(abs(angle), score, subset=f"part{part}") for angle, score, part in zip(angles, gold, sizes, strict=True)
    ]


def test_hand_example():
    # The smaller the angle, the higher the cosine. `first`: ranks 3 2 1 against 3 1 2, which is 0.5. `second` agrees.
    # All five by angle have the gold scores 5 4 1 2 0: two neighbours are swapped, 1 - 6 * 2 / (5 * 24) = 0.9.
    rows = [
        row(0.1, 5, subset="first"),
        row(0.3, 1, subset="first"),
        row(0.4, 2, subset="first"),
        row(0.5, 0, subset="second"),
        row(0.2, 4, subset="second"),
    ]
    metrics = sts(AngleEncoder(), {"STSX": rows}, subsets=True)
    expected = {
        "STSX-sts/en/test/spearman_all": 0.9,
        "STSX-sts/en/test/spearman_mean": 0.75,
        "STSX-sts/en/test/spearman_wmean": 0.7,
        "STSX-sts/en/test/pairs": 5,
        "STSX-sts/en/test/dropped": 0,
        "STSX.first-sts/en/test/spearman": 0.5,
        "STSX.first-sts/en/test/pairs": 3,
        "STSX.second-sts/en/test/spearman": 1.0,
        "STSX.second-sts/en/test/pairs": 2,
    }
    assert {key: value for key, value in metrics.items() if "pearson" not in key} == pytest.approx(expected)
    assert len(metrics) == len(expected) + 3


@pytest.mark.parametrize(("coefficient", "scipys"), [("spearman", spearmanr), ("pearson", pearsonr)])
def test_equals_scipy(coefficient: str, scipys: Any):
    rows = noisy(400, 4)
    metrics = sts(AngleEncoder(), {"X": rows})
    cosines = [math.cos(float(one["sentence2"])) for one in rows]
    gold = [one["score"] for one in rows]
    each, sizes = [], []
    for part in sorted({one["subset"] for one in rows}):
        chosen = [number for number, one in enumerate(rows) if one["subset"] == part]
        each.append(scipys([cosines[n] for n in chosen], [gold[n] for n in chosen]).statistic)
        sizes.append(len(chosen))
    assert len(set(sizes)) > 1  # else wmean and mean are one
    expected = {
        "all": scipys(cosines, gold).statistic,
        "mean": sum(each) / len(each),
        "wmean": sum(value * size for value, size in zip(each, sizes, strict=True)) / sum(sizes),
    }
    assert len({round(value, 6) for value in expected.values()}) == 3
    got = {kind: metrics[f"X-sts/en/test/{coefficient}_{kind}"] for kind in expected}
    # The encoder's vectors pass through float32.
    assert got == pytest.approx(expected, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=3, max_size=30))
def test_ties_equal_scipy(pairs: list[tuple[int, int]]):
    x, y = np.array(pairs, np.float64).T
    defined = np.ptp(x) > 0 and np.ptp(y) > 0
    assert pearson(x, y) == pytest.approx(pearsonr(x, y).statistic if defined else 0)
    assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic if defined else 0)
    assert spearman(x, y) == pytest.approx(spearman(x**3, 2 * y - 7))


def sentence_rows(pairs: Rows, count: int = 80) -> Rows:
    rng = np.random.default_rng(5)
    return [
        {"sentence1": pairs[i]["source"], "sentence2": pairs[i + 1]["source"], "score": float(rng.integers(0, 6))}
        for i in range(count)
    ]


def test_equals_mteb(tiny_export: str, pairs: Rows):
    mteb = pytest.importorskip("mteb")
    from datasets import Dataset

    model, rows = SentenceTransformer(tiny_export, device="cpu"), sentence_rows(pairs)
    task = mteb.get_task("STSBenchmark")
    task.dataset, task.data_loaded = {"default": {"test": Dataset.from_list(rows)}}, True
    result = mteb.evaluate(model, task, cache=None, co2_tracker=False)
    (theirs,) = result.task_results[0].scores["test"]
    metrics = sts(model, {"tiny": rows})
    assert metrics["tiny-sts/en/test/spearman_all"] == pytest.approx(theirs["cosine_spearman"], abs=1e-4)
    assert metrics["tiny-sts/en/test/pearson_all"] == pytest.approx(theirs["cosine_pearson"], abs=1e-5)


def test_undefined_correlation_is_0(caplog: pytest.LogCaptureFixture):
    rows = [row(0.1, 2, subset="a"), row(0.2, 1, subset="a"), row(0.3, 3, subset="b"), row(0.4, 3, subset="b")]
    with caplog.at_level(logging.WARNING):
        metrics = sts(AngleEncoder(), {"X": rows})
    assert metrics["X-sts/en/test/spearman_mean"] == pytest.approx(0.5)
    assert "X: scores or cosines of a subset are all equal 1 time(s)" in caplog.text
    assert sts(AngleEncoder(), {"X": rows[:1]})["X-sts/en/test/spearman_all"] == 0.0


def test_averages_over_tasks():
    tasks = {f"T{number}": noisy(40 + 10 * number, 3, seed=number) for number in range(3)}
    metrics = sts(AngleEncoder(), tasks, split="dev")
    for name in ("spearman_all", "spearman_mean", "spearman_wmean", "pearson_all", "pearson_mean", "pearson_wmean"):
        each = [metrics[f"T{number}-sts/en/dev/{name}"] for number in range(3)]
        assert metrics[f"sts-average-of-3/en/dev/{name}"] == pytest.approx(sum(each) / 3)
    papers = [float("%.2f" % (100 * metrics[f"T{number}-sts/en/dev/spearman_all"])) for number in range(3)]
    rounded = metrics["sts-average-of-3/en/dev/spearman_all_rounded"]
    assert rounded == pytest.approx(sum(papers) / 300, abs=1e-15)
    assert rounded != metrics["sts-average-of-3/en/dev/spearman_all"]
    alone = sts(AngleEncoder(), {"T0": tasks["T0"]}, split="dev")
    assert not any("average" in key for key in alone)
    assert {key: value for key, value in metrics.items() if key.startswith("T0-")} == alone


@pytest.mark.parametrize("language", ["en-es", ("en", "es")])
def test_each_side_takes_its_own_route(language: Any):
    encoder = AngleEncoder(routes=("es", "en"))
    metrics = sts(encoder, {"STS17": noisy(20, 1)}, language=language)
    assert encoder.tasks == ["en", "es"]
    assert {key.split("/")[1] for key in metrics} == {"en-es"}


def test_rows_as_files_hold_them():
    encoder, rows = AngleEncoder(), noisy(50, 2)
    expected = sts(encoder, {"X": rows})
    empty = [row(3, score, subset="part0") for score in ("", "  ", None, float("nan"))]
    text = [{**one, "score": f" {10 * one['score'] + 7} "} for one in rows]
    got = sts(encoder, {"X": [*empty, *text]})
    assert got.pop("X-sts/en/test/dropped") == 4 and expected.pop("X-sts/en/test/dropped") == 0
    assert got == pytest.approx(expected)
    encoder.texts.clear()
    sts(encoder, {"X": [{"sentence1": " 0 \u00a0 A\tb\n", "sentence2": "1  c", "score": 1}, row(1, 0)]})
    assert encoder.texts == ["0 A b", "0", "1 c", "1"]
