from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from senteval_helpers import noisy_classes

from hf_xlsr.evaluation.senteval import folds as senteval_folds
from hf_xlsr.evaluation.senteval.classifier import Group, Schedule, TrainedGroup
from hf_xlsr.evaluation.senteval.folds import Classification

SHORT = Schedule(batch_size=16, passes_per_check=2, tenacity=2, max_passes=30)


def test_order_of_rows():
    vectors, labels = noisy_classes(90, 12, 2, noise=0.3)
    rows = np.random.default_rng(1).permutation(90)
    reordered = Classification(vectors[rows], labels[rows], schedule=SHORT, folds=3).nested(np.arange(90))
    indexed = Classification(vectors, labels, schedule=SHORT, folds=3).nested(rows)
    np.testing.assert_array_equal(indexed.predicted, reordered.predicted)
    assert (indexed.dev, indexed.test) == (reordered.dev, reordered.test)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The groups of each call of `train_classifiers`; every classifier comes back untrained, with these dev scores."""
    calls = SimpleNamespace(groups=[], scores=[[0.5, 0.6, 0.7, 0.7]])

    def pretend(features: Any, width: Any, targets: Any, groups: Sequence[Group], *_: Any, **__: Any) -> Any:
        calls.groups.append(list(groups))
        return [
            TrainedGroup(
                np.array(calls.scores[number % len(calls.scores)][: len(group.weight_decays)]),
                torch.zeros(len(group.weight_decays), 2, features.shape[1], dtype=features.dtype),
                np.zeros(len(group.weight_decays)),
            )
            for number, group in enumerate(groups)
        ]

    monkeypatch.setattr(senteval_folds, "train_classifiers", pretend)
    return calls


@pytest.mark.parametrize(
    ("scores", "decay", "dev"),
    [
        ([[0.8, 0.9, 0.7, 0.6], [0.8, 0.5, 0.7, 0.6]], 1e-5, 0.8),
        ([[0.5, 0.6, 0.7, 0.8]], 1e-2, 0.8),
        ([[0.7, 0.8, 0.8, 0.8]], 1e-4, 0.8),
        # 80.123 % and 80.124 % are equal when rounded: the smaller weight decay is taken, with its own accuracy.
        ([[0.80123, 0.80124, 0.7, 0.7]], 1e-5, 0.80123),
        ([[0.80124, 0.80126, 0.7, 0.7]], 1e-4, 0.80126),
    ],
)
def test_chosen_weight_decay(scores: list[list[float]], decay: float, dev: float, asked: Any):
    vectors, labels = noisy_classes(16, 3, 2, noise=0.3)
    asked.scores = scores
    outcome = Classification(vectors, labels, folds=2).train_folds(np.arange(12), np.arange(12, 16))
    (final,) = asked.groups[1]
    assert (final.weight_decays, outcome.dev) == ((decay,), pytest.approx(dev))
    assert (len(final.train), len(final.dev)) == (11, 1)  # few rows still leave one for the dev score
