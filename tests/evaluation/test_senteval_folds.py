from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from senteval_helpers import choose, folds_alone, nested_alone, noisy_classes, train_alone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

from hf_xlsr.evaluation.senteval import folds as senteval_folds
from hf_xlsr.evaluation.senteval.classifier import Group, Schedule, TrainedGroup
from hf_xlsr.evaluation.senteval.folds import WEIGHT_DECAYS, Classification

SHORT = Schedule(batch_size=16, passes_per_check=2, tenacity=2, max_passes=30)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_nested_is_the_toolkits(optimizer: str):
    vectors, labels = noisy_classes(90, 12, 2, noise=0.3)
    schedule = Schedule(optimizer, batch_size=16, passes_per_check=2, tenacity=2, max_passes=30)
    outcome = Classification(vectors, labels, schedule=schedule, folds=3, seed=5).nested(np.arange(90))
    assert (outcome.dev, outcome.test) == pytest.approx(nested_alone(vectors, labels, 3, schedule=schedule, seed=5))
    assert 0.5 < outcome.test < 1


def test_folds_of_the_training_rows_are_the_toolkits():
    vectors, labels = noisy_classes(150, 12, 3, noise=0.3)
    order = np.random.default_rng(0).permutation(150)
    train, test = order[:100], order[100:]
    outcome = Classification(vectors, labels, schedule=SHORT, folds=4, seed=8).train_folds(train, test)
    decay, dev = folds_alone(vectors[train], labels[train], 4, 8, schedule=SHORT, seed=8)
    final = train_alone(vectors[train], labels[train], None, decay=decay, schedule=SHORT, seed=8)
    assert outcome.dev == pytest.approx(dev)
    np.testing.assert_array_equal(outcome.predicted, final.predict(vectors[test]))
    assert outcome.test == (outcome.predicted == labels[test]).mean()


def test_a_fixed_dev_split_is_the_toolkits():
    vectors, labels = noisy_classes(150, 12, 3, noise=0.3)
    order = np.random.default_rng(0).permutation(150)
    train, dev, test = order[:80], order[80:110], order[110:]
    outcome = Classification(vectors, labels, schedule=SHORT, seed=8).fixed_dev(train, dev, test)
    options: dict[str, Any] = {"schedule": SHORT, "seed": 8}
    given = vectors[dev], labels[dev]
    alone = [train_alone(vectors[train], labels[train], given, decay=one, **options) for one in WEIGHT_DECAYS]
    decay, accuracy = choose([one.score for one in alone])
    assert outcome.dev == accuracy
    final = alone[WEIGHT_DECAYS.index(decay)]
    np.testing.assert_array_equal(outcome.predicted, final.predict(vectors[test]))
    assert outcome.test == (outcome.predicted == labels[test]).mean()


def test_rows_in_another_order_are_other_folds():
    vectors, labels = noisy_classes(90, 12, 2, noise=0.3)
    rows = np.random.default_rng(1).permutation(90)
    reordered = Classification(vectors[rows], labels[rows], schedule=SHORT, folds=3).nested(np.arange(90))
    indexed = Classification(vectors, labels, schedule=SHORT, folds=3).nested(rows)
    np.testing.assert_array_equal(indexed.predicted, reordered.predicted)
    assert (indexed.dev, indexed.test) == (reordered.dev, reordered.test)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[Group]]:
    """The groups of each call of `train_classifiers`; every classifier comes back untrained, the third decay best."""
    calls: list[list[Group]] = []

    def pretend(
        features: Any, width: Any, targets: Any, groups: Sequence[Group], *_: Any, **__: Any
    ) -> list[TrainedGroup]:
        calls.append(list(groups))
        scores = np.array([0.5, 0.6, 0.7, 0.7])
        return [
            TrainedGroup(
                scores[: len(group.weight_decays)],
                torch.zeros(len(group.weight_decays), 2, features.shape[1], dtype=features.dtype),
                np.zeros(len(group.weight_decays)),
            )
            for group in groups
        ]

    monkeypatch.setattr(senteval_folds, "train_classifiers", pretend)
    return calls


def test_nested_folds_test_each_row_once_and_keep_apart_what_they_must(asked: list[list[Group]]):
    vectors, labels = noisy_classes(237, 3, 2, noise=0.3)
    outcome = Classification(vectors, labels).nested(np.arange(237))
    inner, final = asked
    assert sum(len(group.weight_decays) for group in inner + final) == 410
    assert outcome.dev == pytest.approx(0.7)
    tested: list[int] = []
    for number, last in enumerate(final):
        learnt = set(last.train.tolist()) | set(last.dev.tolist())
        assert len(learnt) == len(last.train) + len(last.dev)
        assert len(last.dev) == int(0.05 * len(learnt))
        assert last.weight_decays == (1e-3,)  # the third; the fourth is as good, but the smaller is taken
        rest = sorted(set(range(237)) - learnt)
        assert abs(labels[rest].mean() - labels.mean()) < 0.05  # stratified
        tested += rest
        folds = inner[10 * number : 10 * number + 10]
        for fold in folds:
            assert set(fold.train.tolist()) | set(fold.dev.tolist()) == learnt
            assert not set(fold.train.tolist()) & set(fold.dev.tolist())
        assert sorted(row for fold in folds for row in fold.dev) == sorted(learnt)
    assert sorted(tested) == list(range(237))


def test_few_rows_still_leave_one_to_choose_the_check_on(asked: list[list[Group]]):
    vectors, labels = noisy_classes(16, 3, 2, noise=0.3)
    Classification(vectors, labels, folds=2).train_folds(np.arange(12), np.arange(12, 16))
    (final,) = asked[1]
    assert (len(final.train), len(final.dev)) == (11, 1)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([[0.8, 0.9, 0.7, 0.6], [0.8, 0.5, 0.7, 0.6]], (1e-5, 0.8)),
        ([[0.5, 0.6, 0.7, 0.8]], (1e-2, 0.8)),
        ([[0.7, 0.8, 0.8, 0.8]], (1e-4, 0.8)),
        # 80.123 % and 80.124 % are one when rounded: the smaller weight decay is taken, with its own accuracy.
        ([[0.80123, 0.80124, 0.7, 0.7]], (1e-5, 0.80123)),
        ([[0.80124, 0.80126, 0.7, 0.7]], (1e-4, 0.80126)),
    ],
)
def test_the_weight_decay_that_is_taken(accuracies: list[list[float]], expected: tuple[float, float]):
    assert senteval_folds._best(np.array(accuracies)) == pytest.approx(expected)


def test_separable_classes_are_told_apart():
    random = np.random.default_rng(0)
    labels = np.arange(300) % 2
    vectors = (random.normal(size=(300, 64)) + 3 * (2 * labels - 1)[:, None]).astype(np.float32)
    outcome = Classification(vectors, labels).nested(np.arange(300))
    assert (outcome.dev, outcome.test) == (1.0, 1.0)


def test_labels_without_meaning_give_chance():
    random = np.random.default_rng(0)
    vectors, labels = random.normal(size=(600, 16)).astype(np.float32), random.integers(0, 2, 600)
    outcome = Classification(vectors, labels, folds=5).nested(np.arange(600))
    assert 0.44 < outcome.test < 0.56


def test_accuracy_is_near_that_of_logistic_regression():
    # Near, not equal: the last classifier's check is chosen on a twentieth of the rows, which costs some accuracy.
    vectors, labels = noisy_classes(3000, 32, 2, noise=0.3)
    vectors *= 20
    ours = Classification(vectors.astype(np.float32), labels, folds=5).nested(np.arange(3000))
    peer = cross_val_score(LogisticRegression(max_iter=1000), vectors, labels, cv=5).mean()
    assert 0.85 < peer < 0.95
    assert abs(ours.test - peer) < 0.015
    assert abs(ours.dev - peer) < 0.015
