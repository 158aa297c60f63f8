from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from bitext_helpers import cosines, noisy
from sklearn.metrics import precision_recall_fscore_support

from hf_xlsr.evaluation import tatoeba
from hf_xlsr.evaluation.metrics import METRICS, load_metric, mining_f1


@pytest.fixture(autouse=True)
def library() -> Any:
    return pytest.importorskip("evaluate")


@pytest.mark.parametrize("name", METRICS)
def test_classes(name: str, library: Any):
    metric = load_metric(name)
    assert isinstance(metric, library.Metric)
    assert metric.name == name and metric.module_type == "metric"
    assert "references:" in metric.compute.__doc__ and metric.description
    assert not os.path.exists(metric.data_dir)


# Retrieval accuracy


def test_retrieval_accuracy_equals_the_protocol():
    encoder, sources, targets = noisy(150, noise=1.2)
    sides = [[encoder.table[text] for text in side] for side in (sources, targets)]
    similarities = cosines(encoder, sources, targets)
    own = np.arange(150)
    forward, backward = (float((similarities.argmax(axis=axis) == own).mean()) for axis in (1, 0))
    result = load_metric("retrieval_accuracy").compute(predictions=np.array(sides[0]), references=np.array(sides[1]))
    assert 0.2 < forward < 0.9 and forward != backward
    assert result["source_to_target_accuracy"] == pytest.approx(forward)
    assert result["target_to_source_accuracy"] == pytest.approx(backward)
    protocol = tatoeba(encoder, sources, targets)
    assert result == {key.rsplit("/", 1)[1]: value for key, value in protocol.items() if "accuracy" in key}


# Mining F1


def test_mining_f1_equals_scikit_learn():
    rng = np.random.default_rng(0)
    gold = {(int(s), int(t)) for s, t in rng.integers(0, 12, size=(60, 2))}
    mined = {(int(s), int(t)) for s, t in rng.integers(0, 12, size=(50, 2))}
    every = sorted(gold | mined)
    expected = precision_recall_fscore_support(
        [pair in gold for pair in every], [pair in mined for pair in every], average="binary"
    )[:3]
    assert 0.1 < expected[2] < 0.9
    result = load_metric("mining_f1").compute(predictions=sorted(mined), references=sorted(gold))
    assert [result[key] for key in ("precision", "recall", "f1")] == pytest.approx(expected)
    assert result == mining_f1(mined, gold)


def test_mining_f1_hand_example_in_batches():
    metric = load_metric("mining_f1")
    metric.add_batch(predictions=[("s1", "t1"), ("s2", "t9")], references=[("s1", "t1")])
    metric.add_batch(predictions=[("s1", "t1")], references=[])  # once more
    metric.add_batch(predictions=[], references=[("s3", "t3"), ("s4", "t4")])
    assert metric.compute() == {"precision": 1 / 2, "recall": 1 / 3, "f1": 2 / 5}
    metric.add(prediction=[("s1", "t1")], reference=[("s1", "t1")])
    assert metric.compute()["f1"] == 1.0


# Spearman


def test_spearman_hand_example_in_batches():
    # Ranks 1 2 3 against 1 3 2: 1 - 6 * 2 / (3 * 8).
    metric = load_metric("sts_spearman")
    metric.add_batch(predictions=[0.1, 0.5], references=[0.0, 4.0])
    metric.add(prediction=0.9, reference=3.5)
    assert metric.compute() == {"spearman": pytest.approx(0.5)}
    assert metric.compute(predictions=[1.0, 2.0], references=[5.0, 4.0]) == {"spearman": pytest.approx(-1.0)}
