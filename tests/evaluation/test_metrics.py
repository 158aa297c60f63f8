from __future__ import annotations

import os

import numpy as np
import pytest
from bitext_helpers import noisy
from sklearn.metrics import precision_recall_fscore_support

from hf_xlsr.evaluation import tatoeba
from hf_xlsr.evaluation.metrics import METRICS, load_metric

evaluate = pytest.importorskip("evaluate")


@pytest.mark.parametrize("name", METRICS)
def test_classes(name: str) -> None:
    metric = load_metric(name)
    assert isinstance(metric, evaluate.Metric)
    assert metric.name == name
    assert "load_metric" in metric.compute.__doc__
    assert not os.path.exists(metric.data_dir)


def test_retrieval_accuracy_equals_the_protocol() -> None:
    encoder, sources, targets = noisy(150, noise=1.2)
    vectors = [np.array([encoder.table[text] for text in side]) for side in (sources, targets)]
    result = load_metric("retrieval_accuracy").compute(predictions=vectors[0], references=vectors[1])
    protocol = tatoeba(encoder, sources, targets)
    assert result == {key.rsplit("/", 1)[1]: value for key, value in protocol.items() if "accuracy" in key}


def test_mining_f1_equals_scikit_learn_and_counts_batches_together() -> None:
    rng = np.random.default_rng(0)
    gold = set(map(tuple, rng.integers(0, 12, size=(60, 2)).tolist()))
    mined = set(map(tuple, rng.integers(0, 12, size=(50, 2)).tolist()))
    pairs = sorted(gold | mined)
    is_gold = [pair in gold for pair in pairs]
    is_mined = [pair in mined for pair in pairs]
    expected = precision_recall_fscore_support(is_gold, is_mined, average="binary")[:3]

    metric = load_metric("mining_f1")
    metric.add_batch(predictions=sorted(mined), references=sorted(gold)[:20])
    metric.add_batch(predictions=sorted(mined)[:5], references=sorted(gold)[20:])  # five once more
    result = metric.compute()
    assert [result[key] for key in ("precision", "recall", "f1")] == pytest.approx(expected)
