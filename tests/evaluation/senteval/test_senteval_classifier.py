from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from senteval_helpers import noisy_classes, train_alone

from hf_xlsr.evaluation.senteval import classifier as senteval_classifier
from hf_xlsr.evaluation.senteval.classifier import (
    Group,
    Schedule,
    TrainedGroup,
    accuracy_score,
    logits_of,
    train_classifiers,
    with_constant,
)

CPU = torch.device("cpu")
# Batches of 8: three groups have 9 batches a pass, with 1, 3 and 8 rows in the last; two have 8, with 8 and 5 rows.
LENGTHS = (65, 67, 72, 64, 61)
DECAYS = (1e-5, 1e-3, 1e-2, 0.3)  # far apart, so that classifiers end at different times


def some_groups(rows: int = 100, random: np.random.RandomState | None = None) -> list[Group]:
    orders = np.random.default_rng(3)
    order = [orders.permutation(rows) for _ in LENGTHS]
    return [
        Group(one[:length], one[length : length + 20], DECAYS, random)
        for one, length in zip(order, LENGTHS, strict=True)
    ]


def train(
    vectors: np.ndarray, labels: np.ndarray, groups: Sequence[Group], schedule: Schedule, seed: int = 1111
) -> list[TrainedGroup]:
    numbers = torch.from_numpy(labels)
    features = with_constant(vectors, CPU)
    targets = F.one_hot(numbers).to(features.dtype)
    score = accuracy_score(numbers)
    return train_classifiers(features, vectors.shape[1], targets, groups, score, schedule=schedule, seed=seed)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("classes", [2, 3])
def test_equals_one_at_a_time(optimizer: str, classes: int):
    vectors, labels = noisy_classes(100, 21, classes, noise=0.4)
    schedule = Schedule(optimizer, batch_size=8, passes_per_check=2, tenacity=5, max_passes=60)
    groups = some_groups()
    trained = train(vectors, labels, groups, schedule, seed=7)
    passes = np.array([one.passes for one in trained])
    assert len(set(passes.max(axis=1))) > 1, "groups have to leave the stack at different times"
    assert (passes.min(axis=1) < passes.max(axis=1)).any(), "classifiers have to end before others of their group"
    for group, together in zip(groups, trained, strict=True):
        dev = vectors[group.dev], labels[group.dev]
        for place, decay in enumerate(DECAYS):
            rows = group.train
            alone = train_alone(
                vectors[rows], labels[rows], dev, decay=decay, schedule=schedule, seed=7, classes=classes
            )
            assert together.scores[place] == alone.score
            assert together.passes[place] == alone.passes
            weights = together.weights[place].numpy()
            np.testing.assert_allclose(weights[:, :21], alone.model.weight.numpy(), rtol=0, atol=1e-8)
            np.testing.assert_allclose(weights[:, 21], alone.model.bias.numpy(), rtol=0, atol=1e-8)
            assert not weights[:, 22:].any()  # what pads the features has no weight


def test_stacks_and_threads(monkeypatch: pytest.MonkeyPatch):
    vectors, labels = noisy_classes(100, 21, 2, noise=0.4)
    schedule = Schedule(batch_size=8, tenacity=1)
    expected = train(vectors, labels, some_groups(), schedule)
    monkeypatch.setattr(senteval_classifier, "GROUPS_ON_CPU", 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = train(vectors, labels, some_groups(), schedule)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one.scores, other.scores)
        np.testing.assert_array_equal(one.passes, other.passes)
        torch.testing.assert_close(one.weights, other.weights, rtol=0, atol=1e-12)


def test_random_states_and_inputs_stay_unchanged():
    vectors, labels = noisy_classes(100, 21, 2, noise=0.4)
    before = vectors.copy()
    torch.manual_seed(5)
    np.random.seed(5)
    expected = torch.rand(2).tolist(), np.random.rand(2).tolist()
    torch.manual_seed(5)
    np.random.seed(5)
    train(vectors, labels, some_groups(), Schedule(max_passes=3))
    assert (torch.rand(2).tolist(), np.random.rand(2).tolist()) == expected
    np.testing.assert_array_equal(vectors, before)


def test_seed():
    vectors, labels = noisy_classes(100, 21, 2, noise=0.4)
    schedule = Schedule(max_passes=3)
    first, again, other = (train(vectors, labels, some_groups(), schedule, seed)[0].weights for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    # A generator that has been used already goes on with other orders.
    used = np.random.RandomState(1)
    used.permutation(65)
    shifted = train(vectors, labels, some_groups(random=used)[:1], schedule, 1)[0].weights
    assert not torch.allclose(first, shifted)


def scripted(scores: Sequence[float], schedule: Schedule) -> tuple[TrainedGroup, list[torch.Tensor]]:
    """One classifier whose dev scores are given; also its logits on dev at each check."""
    vectors, labels = noisy_classes(40, 5, 2, noise=0.4)
    seen: list[torch.Tensor] = []

    def score(logits: torch.Tensor, rows: torch.Tensor) -> np.ndarray:
        assert rows.tolist() == list(range(30, 40))
        seen.append(logits[:, 0].clone())
        return np.array([scores[len(seen) - 1]])

    features = with_constant(vectors, CPU)
    targets = F.one_hot(torch.from_numpy(labels)).to(features)
    group = Group(np.arange(30), np.arange(30, 40), (0.0,))
    (trained,) = train_classifiers(features, 5, targets, [group], score, schedule=schedule, seed=1)
    torch.testing.assert_close(logits_of(trained.weights, features[30:])[:, 0], seen[scores.index(trained.scores[0])])
    return trained, seen


@pytest.mark.parametrize(
    ("scores", "changes", "best", "passes"),
    [
        # Not better: the second (lower), the fourth (equal) and the sixth check. The third miss ends it.
        ([0.5, 0.4, 0.6, 0.6, 0.7, 0.1, 0.9], {"tenacity": 2}, 0.7, 24),
        ([0.5, 0.8, 0.8, 0.8], {"tenacity": 1, "passes_per_check": 1}, 0.8, 4),
        # The check that exceeds the limit is the last.
        ([0.1, 0.2, 0.3, 0.4, 0.5], {"max_passes": 7}, 0.2, 8),
        ([0.1, 0.2, 0.3, 0.4, 0.5], {"max_passes": 8}, 0.3, 12),
    ],
)
def test_patience(scores: list[float], changes: dict[str, Any], best: float, passes: int):
    trained, seen = scripted(scores, schedule := Schedule(**changes))
    assert (trained.scores[0], trained.passes[0]) == (best, passes)
    assert len(seen) == passes // schedule.passes_per_check


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_accelerator():
    vectors, labels = noisy_classes(100, 21, 2, noise=0.4)
    expected = train(vectors, labels, some_groups(), Schedule(max_passes=40))
    numbers = torch.from_numpy(labels).cuda()
    features = with_constant(vectors, torch.device("cuda"))
    targets = F.one_hot(numbers).to(features.dtype)
    found = train_classifiers(
        features, 21, targets, some_groups(), accuracy_score(numbers), schedule=Schedule(max_passes=40), seed=1111
    )
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one.scores, other.scores)
        torch.testing.assert_close(one.weights, other.weights.cpu(), rtol=0, atol=1e-8)
