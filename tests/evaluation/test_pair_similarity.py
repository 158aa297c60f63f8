"""`sts` and `pair_classification` against SciPy, scikit-learn and sentence-transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sentence_transformers.sentence_transformer.evaluation import BinaryClassificationEvaluator
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

from hf_xlsr.evaluation import pair_classification, sts
from hf_xlsr.evaluation.outcomes import pearson, spearman

Rows = list[dict[str, Any]]
MEASURES = ("cosine", "dot", "euclidean", "manhattan")


class NumbersEncoder:
    """Sentences are vectors: numbers with spaces between."""

    def __init__(self, routes: tuple[str, ...] = ()):
        self.routes = routes
        self.texts: list[str] = []
        self.tasks: list[str | None] = []

    def encode(self, texts: list[str], normalize_embeddings: bool = False, **kwargs: Any) -> np.ndarray:
        self.texts += texts
        self.tasks.append(kwargs.get("task"))
        vectors = np.array([[float(number) for number in text.split()] for text in texts])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalize_embeddings else vectors


def row(angle: float, score: Any, **more: Any) -> dict[str, Any]:
    """Sentences whose cosine is that of the angle."""
    return {"sentence1": "1 0", "sentence2": f"{np.cos(angle)} {np.sin(angle)}", "score": score, **more}


def of_cosines(cosines: list[float], labels: list[Any]) -> Rows:
    return [{**row(np.arccos(cosine), 0), "label": label} for cosine, label in zip(cosines, labels, strict=True)]


# STS


def noisy(count: int, subsets: int, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 11, count) / 2
    angles = (5 - gold) * 0.5 + rng.normal(size=count) * 0.4
    sizes = rng.integers(0, subsets, count)
    parts = zip(np.abs(angles), gold, sizes, strict=True)
    return [row(angle, score, subset=f"part{part}") for angle, score, part in parts]


@pytest.mark.parametrize(("coefficient", "scipys"), [("spearman", spearmanr), ("pearson", pearsonr)])
def test_sts_equals_scipy(coefficient: str, scipys: Any):
    rows = noisy(400, 4)
    metrics = sts(NumbersEncoder(), {"X": rows})
    cosines = [float(one["sentence2"].split()[0]) for one in rows]
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


def test_averages_over_tasks():
    tasks = {f"T{number}": noisy(40 + 10 * number, 3, seed=number) for number in range(3)}
    metrics = sts(NumbersEncoder(), tasks, split="dev")
    each = [metrics[f"T{number}-sts/en/dev/pearson_wmean"] for number in range(3)]
    assert metrics["sts-average-of-3/en/dev/pearson_wmean"] == pytest.approx(sum(each) / 3)


def test_rows_as_files_hold_them():
    encoder, rows = NumbersEncoder(), noisy(50, 2)
    expected = sts(encoder, {"X": rows})
    empty = [row(3, score, subset="part0") for score in ("", "  ", None, float("nan"))]
    text = [{**one, "score": f" {10 * one['score'] + 7} "} for one in rows]
    got = sts(encoder, {"X": [*empty, *text]})
    assert got.pop("X-sts/en/test/dropped") == 4 and expected.pop("X-sts/en/test/dropped") == 0
    assert got == pytest.approx(expected)
    encoder.texts.clear()
    sts(encoder, {"X": [{"sentence1": " 0 \u00a0 1\t2\n", "sentence2": "1  1 1", "score": 1}] * 2})
    assert encoder.texts == ["0 1 2", "1 1 1"]


# Pair classification


def of_vectors(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, Rows]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    u = rng.normal(size=(count, 5)) * rng.uniform(0.5, 2, (count, 1))
    v = u * labels[:, None] * 0.6 + rng.normal(size=(count, 5))
    u, v = u.astype(np.float32), v.astype(np.float32)
    texts = ([" ".join(map(repr, map(float, vector))) for vector in side] for side in (u, v))
    rows = [{"sentence1": a, "sentence2": b, "label": c} for a, b, c in zip(*texts, labels.tolist(), strict=True)]
    return u.astype(np.float64), v.astype(np.float64), labels, rows


def run(rows: Rows, encoder: Any = None, **options: Any) -> dict[str, float]:
    metrics = pair_classification(encoder or NumbersEncoder(), rows, name="X", language="de", **options)
    assert all(key.startswith("X-pair-classification/de/test/") for key in metrics)
    return {key.rsplit("/", 1)[1]: value for key, value in metrics.items()}


def test_classification_equals_scikit_learn():
    u, v, labels, rows = of_vectors(120, seed=1)
    similarities = {
        "cosine": (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1),
        "dot": (u * v).sum(1),
        "euclidean": -np.sqrt(((u - v) ** 2).sum(1)),
        "manhattan": -np.abs(u - v).sum(1),
    }
    metrics = run(rows, tune=of_vectors(100, seed=2)[3])
    for measure, scores in similarities.items():
        assert metrics[f"{measure}_ap"] == pytest.approx(average_precision_score(labels, scores))
    each = [metrics[f"{measure}_ap"] for measure in MEASURES]
    assert metrics["max_ap"] == max(each) > min(each)
    for name, metric in (("accuracy", accuracy_score), ("f1", f1_score)):
        predicted = similarities["cosine"] >= metrics[f"cosine_{name}_threshold"]
        assert metrics[f"cosine_{name}"] == pytest.approx(metric(labels, predicted))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1)), min_size=2, max_size=15))
def test_with_ties_equals_scikit_learn_and_sentence_transformers(pairs: list[tuple[int, int]]):
    labels = [label for _, label in pairs]
    if len(set(labels)) < 2:
        return
    rows = of_cosines([0.25 * step for step, _ in pairs], labels)
    metrics = run(rows, tune=rows)
    scores = [step for step, _ in pairs]
    assert metrics["cosine_ap"] == pytest.approx(average_precision_score(labels, scores))
    theirs = BinaryClassificationEvaluator
    accuracy, _ = theirs.find_best_acc_and_threshold(np.array(scores), np.array(labels), True)
    f1, *_ = theirs.find_best_f1_and_threshold(np.array(scores), np.array(labels), True)
    # Tuned on the very rows that are judged, they are the best that a threshold anywhere can do.
    assert metrics["cosine_accuracy"] == pytest.approx(accuracy)
    assert metrics["cosine_f1"] == pytest.approx(f1)


def test_labels_may_be_text():
    *_, rows = of_vectors(40, seed=3)
    for one, zero in (("1", "0"), (True, False), ("1.0", " 0 ")):
        assert run([{**row, "label": one if row["label"] else zero} for row in rows]) == run(rows)


@pytest.mark.parametrize("language", ["en-es", ("en", "es")])
def test_each_side_takes_its_own_route(language: Any):
    encoder, rows = NumbersEncoder(routes=("es", "en")), of_cosines([0.5, 0.1], [1, 0])
    assert {key.split("/")[1] for key in sts(encoder, {"STS17": rows}, language=language)} == {"en-es"}
    metrics = pair_classification(encoder, rows, tune=rows, name="X", language=language, split="dev")
    assert encoder.tasks == ["en", "es"] * 3
    assert {key.rsplit("/", 1)[0] for key in metrics} == {"X-pair-classification/en-es/dev"}
    pair_classification(encoder, rows, tune=rows, name="X", language="es", tune_language="en")
    assert encoder.tasks[6:] == ["es", "en"]
