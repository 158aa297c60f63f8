"""`pair_classification` by hand, against scikit-learn, sentence-transformers and mteb."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import BinaryClassificationEvaluator
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

from hf_xlsr.evaluation.protocols.pair_classification import pair_classification

Rows = list[dict[str, Any]]
MEASURES = ("cosine", "dot", "euclidean", "manhattan")


class TableEncoder:
    """Sentences are vectors: numbers with spaces between."""

    def __init__(self, routes: tuple[str, ...] = ()):
        self.routes = routes
        self.tasks: list[str | None] = []

    def encode(self, texts: list[str], normalize_embeddings: bool = False, **kwargs: Any) -> np.ndarray:
        self.tasks.append(kwargs.get("task"))
        vectors = np.array([[float(number) for number in text.split()] for text in texts])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalize_embeddings else vectors


def of_cosines(cosines: list[float], labels: list[Any]) -> Rows:
    """Pairs that have these cosines."""
    return [
        {"sentence1": "1 0", "sentence2": f"{cosine} {(1 - cosine**2) ** 0.5}", "label": label}
        for cosine, label in zip(cosines, labels, strict=True)
    ]


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
    metrics = pair_classification(encoder or TableEncoder(), rows, name="X", language="de", **options)
    assert all(key.startswith("X-pair-classification/de/test/") for key in metrics)
    return {key.rsplit("/", 1)[1]: value for key, value in metrics.items()}


def test_hand_example():
    # From the top 1 0 1 0 0: precision is 1 at the first positive and 2/3 at the second. Cutting after the first or
    # the third leaves one wrong; F1 is 2/3 after the first and 2 * (2/3) / (5/3) = 0.8 after the third.
    metrics = run(of_cosines([0.9, 0.7, 0.6, 0.3, 0.1], [1, 0, 1, 0, 0]))
    assert metrics["cosine_ap"] == pytest.approx((1 + 2 / 3) / 2)
    assert metrics["cosine_best_threshold_accuracy"] == 0.8
    assert metrics["cosine_best_threshold_f1"] == pytest.approx(0.8)
    assert (metrics["pairs"], metrics["positives"]) == (5, 2)
    # Both sides are unit vectors, so that these three measures rank alike.
    for metric in ("ap", "best_threshold_accuracy", "best_threshold_f1"):
        assert metrics[f"euclidean_{metric}"] == metrics[f"dot_{metric}"] == metrics[f"cosine_{metric}"]
    assert not any("threshold" in key and "best" not in key for key in metrics)


def test_hand_example_of_tuning():
    # On `tune` the cut between 0.8 and 0.4 is best for both: the threshold is 0.6, which 0.61 passes and 0.59 does not.
    tune = of_cosines([0.9, 0.8, 0.4, 0.2], [1, 1, 0, 0])
    metrics = run(of_cosines([0.99, 0.61, 0.59, 0.3], [0, 1, 1, 0]), tune=tune)
    assert metrics["cosine_accuracy_threshold"] == pytest.approx(0.6)
    assert metrics["cosine_f1_threshold"] == pytest.approx(0.6)
    assert metrics["cosine_accuracy"] == 0.5
    assert metrics["cosine_f1"] == 0.5
    assert metrics["cosine_best_threshold_accuracy"] == 0.75


def test_equals_scikit_learn():
    u, v, labels, rows = of_vectors(120, seed=1)
    _, _, tune_labels, tune = of_vectors(100, seed=2)
    similarities = {
        "cosine": (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1),
        "dot": (u * v).sum(1),
        "euclidean": -np.sqrt(((u - v) ** 2).sum(1)),
        "manhattan": -np.abs(u - v).sum(1),
    }
    metrics = run(rows, tune=tune)
    for measure, scores in similarities.items():
        assert metrics[f"{measure}_ap"] == pytest.approx(average_precision_score(labels, scores))
        ordered = np.sort(scores)
        cuts = (ordered[1:] + ordered[:-1]) / 2
        accuracy = max(accuracy_score(labels, scores > cut) for cut in cuts)
        assert metrics[f"{measure}_best_threshold_accuracy"] == pytest.approx(accuracy)
        assert metrics[f"{measure}_best_threshold_f1"] == pytest.approx(
            max(f1_score(labels, scores > cut) for cut in cuts)
        )
    for metric in ("ap", "best_threshold_accuracy", "best_threshold_f1"):
        each = [metrics[f"{measure}_{metric}"] for measure in MEASURES]
        assert metrics[f"max_{metric}"] == max(each) > min(each)
    predicted = similarities["cosine"] >= metrics["cosine_accuracy_threshold"]
    assert metrics["cosine_accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    predicted = similarities["cosine"] >= metrics["cosine_f1_threshold"]
    assert metrics["cosine_f1"] == pytest.approx(f1_score(labels, predicted))
    assert metrics["cosine_accuracy"] <= metrics["cosine_best_threshold_accuracy"]


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


@pytest.mark.parametrize("labels", [[0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 1, 1], [1, 1, 1, 0]])
def test_tuning_may_leave_all_pairs_on_one_side(labels: list[int]):
    # All cosines are equal: no threshold lies between two of them.
    rows = of_cosines([0.5] * 4, labels)
    metrics = run(rows, tune=rows)
    assert metrics["cosine_accuracy"] == 0.75
    assert metrics["cosine_f1"] == pytest.approx(2 * sum(labels) / (4 + sum(labels)))
    assert np.isfinite(metrics["cosine_accuracy_threshold"])
    assert metrics["cosine_best_threshold_accuracy"] == 0.0  # as in mteb


def sentence_rows(pairs: Rows) -> Rows:
    """A word more or less is a paraphrase; the next sentence is none. Neither is easy for an untrained encoder."""
    rows = []
    for number in range(60):
        text = pairs[number]["source"]
        other = " ".join(text.split()[1:]) if number % 3 else pairs[number + 1]["source"]
        rows.append({"sentence1": text, "sentence2": other, "label": int(number % 3 > 0)})
    return rows


def test_equals_mteb(tiny_export: str, pairs: Rows):
    mteb = pytest.importorskip("mteb")
    from datasets import Dataset

    model, rows = SentenceTransformer(tiny_export, device="cpu"), sentence_rows(pairs)
    task = mteb.get_task("SprintDuplicateQuestions")
    columns = {name: [row[name] for row in rows] for name in ("sentence1", "sentence2")}
    data = Dataset.from_dict({**columns, "labels": [row["label"] for row in rows]})
    task.dataset, task.data_loaded = {"default": {"test": data}}, True
    result = mteb.evaluate(model, task, cache=None, co2_tracker=False)
    (theirs,) = result.task_results[0].scores["test"]
    ours = run(rows, encoder=model)
    names = {"ap": "ap", "best_threshold_accuracy": "accuracy", "best_threshold_f1": "f1"}
    for measure in (*MEASURES, "max"):
        for our_name, their_name in names.items():
            assert ours[f"{measure}_{our_name}"] == pytest.approx(theirs[f"{measure}_{their_name}"], abs=1e-6)
    assert 0.1 < ours["max_ap"] < 1


def test_labels_may_be_text():
    u, v, labels, rows = of_vectors(40, seed=3)
    for one, zero in (("1", "0"), (1.0, 0.0), (True, False), (np.int64(1), np.int64(0)), ("1.0", " 0 ")):
        assert run([{**row, "label": one if row["label"] else zero} for row in rows]) == run(rows)


def test_each_side_takes_its_own_route():
    encoder = TableEncoder(routes=("de", "en"))
    rows = of_cosines([0.5, 0.1], [1, 0])
    metrics = pair_classification(encoder, rows, tune=rows, name="X", language=("en", "de"), split="dev")
    assert encoder.tasks == ["en", "de"] * 2
    assert {key.rsplit("/", 1)[0] for key in metrics} == {"X-pair-classification/en-de/dev"}
    pair_classification(encoder, rows, tune=rows, name="X", language="de", tune_language="en")
    assert encoder.tasks[4:] == ["de", "en"]
