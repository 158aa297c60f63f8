"""`sts` and `pair_classification` against SciPy, scikit-learn and sentence-transformers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from bitext_helpers import unit
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sentence_transformers.sentence_transformer.evaluation import BinaryClassificationEvaluator
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

from hf_xlsr.evaluation import pair_classification, sts
from hf_xlsr.evaluation.outcomes import pearson, spearman

Rows = list[dict[str, Any]]


class NumbersEncoder:
    """Sentences are vectors: numbers with spaces between."""

    def __init__(self, routes: tuple[str, ...] = ()):
        self.routes = routes
        self.texts: list[str] = []
        self.tasks: list[str | None] = []

    def encode(self, texts: list[str], normalize_embeddings: bool = False, **kwargs: Any) -> np.ndarray:
        self.texts += texts
        self.tasks.append(kwargs.get("task"))
        vectors = np.stack([np.array(text.split(), np.float64) for text in texts])
        return unit(vectors) if normalize_embeddings else vectors


def row(angle: float, **columns: Any) -> dict[str, Any]:
    """Sentences whose cosine is that of the angle."""
    return {"sentence1": "1 0", "sentence2": f"{np.cos(angle)} {np.sin(angle)}", **columns}


def of_cosines(cosines: Iterable[float], labels: Iterable[int]) -> Rows:
    return [row(np.arccos(cosine), score=0, label=label) for cosine, label in zip(cosines, labels, strict=True)]


# STS


def noisy(count: int, subsets: int, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 11, count) / 2
    angles = np.abs((5 - gold) * 0.5 + rng.normal(size=count) * 0.4)
    numbers = rng.integers(0, subsets, count)

    rows = []
    for angle, score, number in zip(angles, gold, numbers, strict=True):
        rows.append(row(angle, score=score, subset=f"part{number}"))
    return rows


@pytest.mark.parametrize(("coefficient", "scipys"), [("spearman", spearmanr), ("pearson", pearsonr)])
def test_sts_equals_scipy(coefficient: str, scipys: Any):
    rows = noisy(400, 4)
    metrics = sts(NumbersEncoder(), {"X": rows})

    def correlation(rows: pd.DataFrame) -> float:
        cosines = rows.sentence2.str.split().str[0].astype(float)
        return scipys(cosines, rows.score).statistic

    table = pd.DataFrame(rows)
    subsets = [subset for _, subset in table.groupby("subset")]
    by_subset = list(map(correlation, subsets))
    expected = {
        "all": correlation(table),
        "mean": np.mean(by_subset),
        "wmean": np.average(by_subset, weights=list(map(len, subsets))),
    }

    assert len(set(np.round(list(expected.values()), 6))) == 3  # else the three are one
    for kind, value in expected.items():
        # The encoder's vectors pass through float32.
        assert metrics[f"X-sts/en/test/{coefficient}_{kind}"] == pytest.approx(value, abs=1e-6)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=3, max_size=30))
def test_ties_equal_scipy(pairs: list[tuple[int, int]]):
    x, y = np.array(pairs, np.float64).T
    if np.ptp(x) and np.ptp(y):
        assert pearson(x, y) == pytest.approx(pearsonr(x, y).statistic)
        assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic)
        assert spearman(x, y) == pytest.approx(spearman(x**3, 2 * y - 7))
    else:
        assert pearson(x, y) == 0
        assert spearman(x, y) == 0


def test_averages_over_tasks():
    tasks = {
        "A": noisy(40, 3, seed=0),
        "B": noisy(50, 3, seed=1),
        "C": noisy(60, 3, seed=2),
    }
    metrics = sts(NumbersEncoder(), tasks, split="dev")

    values = [metrics[f"{task}-sts/en/dev/pearson_wmean"] for task in tasks]
    assert metrics["sts-average-of-3/en/dev/pearson_wmean"] == pytest.approx(np.mean(values))


def test_scores_as_files_hold_them():
    rows = noisy(50, 2)
    expected = sts(NumbersEncoder(), {"X": rows})

    unscored = [row(3, score=score, subset="part0") for score in ("", "  ", None, float("nan"))]
    scored = [{**row, "score": f" {10 * row['score'] + 7} "} for row in rows]
    metrics = sts(NumbersEncoder(), {"X": [*unscored, *scored]})

    assert expected.pop("X-sts/en/test/dropped") == 0
    assert metrics.pop("X-sts/en/test/dropped") == 4
    assert metrics == pytest.approx(expected)


def test_white_space_is_reduced():
    encoder = NumbersEncoder()
    row = {"sentence1": " 0 \u00a0 1\t2\n", "sentence2": "1  1 1", "score": 1}
    sts(encoder, {"X": [row, row]})
    assert encoder.texts == ["0 1 2", "1 1 1"]


# Pair classification


def of_vectors(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, Rows]:
    """Vectors of both sides, float64, labels, and rows that the encoder turns into these vectors."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    u = rng.normal(size=(count, 5)) * rng.uniform(0.5, 2, (count, 1))
    v = u * labels[:, None] * 0.6 + rng.normal(size=(count, 5))
    u = u.astype(np.float32).astype(np.float64)
    v = v.astype(np.float32).astype(np.float64)

    rows = []
    for first, second, label in zip(u, v, labels.tolist(), strict=True):
        row = {
            "sentence1": sentence_of(first),
            "sentence2": sentence_of(second),
            "label": label,
        }
        rows.append(row)
    return u, v, labels, rows


def sentence_of(vector: np.ndarray) -> str:
    return " ".join(map(repr, vector.tolist()))


def run(rows: Rows, **options: Any) -> dict[str, float]:
    """The metrics, without what their keys begin with."""
    metrics = pair_classification(NumbersEncoder(), rows, name="X", language="de", **options)
    values = {}
    for key, value in metrics.items():
        prefix, metric = key.rsplit("/", 1)
        assert prefix == "X-pair-classification/de/test"
        values[metric] = value
    return values


def test_classification_equals_scikit_learn():
    u, v, labels, rows = of_vectors(120, seed=1)
    *_, tune = of_vectors(100, seed=2)
    metrics = run(rows, tune=tune)

    similarities = {
        "cosine": (unit(u) * unit(v)).sum(1),
        "dot": (u * v).sum(1),
        "euclidean": -np.linalg.norm(u - v, axis=1),
        "manhattan": -np.abs(u - v).sum(1),
    }
    precisions = []
    for measure, scores in similarities.items():
        precision = metrics[f"{measure}_ap"]
        assert precision == pytest.approx(average_precision_score(labels, scores))
        precisions.append(precision)
    assert max(precisions) > min(precisions)
    assert metrics["max_ap"] == max(precisions)

    for name, metric in (("accuracy", accuracy_score), ("f1", f1_score)):
        predicted = similarities["cosine"] >= metrics[f"cosine_{name}_threshold"]
        assert metrics[f"cosine_{name}"] == pytest.approx(metric(labels, predicted))


@settings(max_examples=80)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1)), min_size=2, max_size=15))
def test_with_ties_equals_scikit_learn_and_sentence_transformers(pairs: list[tuple[int, int]]):
    scores, labels = np.array(pairs).T
    if len(set(labels)) < 2:
        return

    rows = of_cosines(scores / 4, labels)
    metrics = run(rows, tune=rows)
    assert metrics["cosine_ap"] == pytest.approx(average_precision_score(labels, scores))

    # Tuned on the very rows that are judged, they are the best that a threshold anywhere can do.
    accuracy, _ = BinaryClassificationEvaluator.find_best_acc_and_threshold(scores, labels, True)
    f1, *_ = BinaryClassificationEvaluator.find_best_f1_and_threshold(scores, labels, True)
    assert metrics["cosine_accuracy"] == pytest.approx(accuracy)
    assert metrics["cosine_f1"] == pytest.approx(f1)


@pytest.mark.parametrize(("positive", "negative"), [("1", "0"), (True, False), ("1.0", " 0 ")])
def test_labels_may_be_text(positive: Any, negative: Any):
    *_, rows = of_vectors(40, seed=3)
    expected = run(rows)
    for row in rows:
        row["label"] = positive if row["label"] else negative
    assert run(rows) == expected


@pytest.mark.parametrize("language", ["en-es", ("en", "es")])
def test_each_side_takes_its_own_route(language: Any):
    encoder = NumbersEncoder(routes=("es", "en"))
    rows = of_cosines([0.5, 0.1], [1, 0])

    correlations = sts(encoder, {"STS17": rows}, language=language)
    for key in correlations:
        assert "/en-es/" in key
    metrics = pair_classification(encoder, rows, tune=rows, name="X", language=language, split="dev")
    for key in metrics:
        assert key.startswith("X-pair-classification/en-es/dev/")

    assert encoder.tasks == ["en", "es"] * 3


def test_tuning_rows_take_the_route_of_their_own_language():
    encoder = NumbersEncoder(routes=("es", "en"))
    rows = of_cosines([0.5, 0.1], [1, 0])
    pair_classification(encoder, rows, tune=rows, name="X", language="es", tune_language="en")
    assert encoder.tasks == ["es", "en"]
