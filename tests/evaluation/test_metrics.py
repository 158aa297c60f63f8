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
    metric = load_metric("retrieval_accuracy")
    result = metric.compute(predictions=encoder.encode(sources), references=encoder.encode(targets))

    expected = {}
    for key, value in tatoeba(encoder, sources, targets).items():
        if "accuracy" in key:
            expected[key.rsplit("/", 1)[1]] = value
    assert result == expected


def random_pairs(count: int, seed: int) -> list[tuple[int, int]]:
    """Distinct pairs of small numbers."""
    numbers = np.random.default_rng(seed).integers(0, 12, size=(count, 2))
    return sorted(set(map(tuple, numbers.tolist())))


def test_mining_f1_equals_scikit_learn_and_counts_batches_together() -> None:
    gold = random_pairs(60, seed=0)
    mined = random_pairs(50, seed=1)
    all_pairs = {*gold, *mined}
    is_gold = [pair in gold for pair in all_pairs]
    is_mined = [pair in mined for pair in all_pairs]
    precision, recall, f1, _ = precision_recall_fscore_support(is_gold, is_mined, average="binary")

    metric = load_metric("mining_f1")
    metric.add_batch(predictions=mined, references=gold[:20])
    metric.add_batch(predictions=mined[:5], references=gold[20:])  # five once more
    result = metric.compute()

    assert result["precision"] == pytest.approx(precision)
    assert result["recall"] == pytest.approx(recall)
    assert result["f1"] == pytest.approx(f1)
