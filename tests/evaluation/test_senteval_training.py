"""SentEval's classifiers, trained together, against one at a time; choices, and predicted scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import pearsonr, spearmanr
from senteval_helpers import train_alone, train_model
from torch import nn

from hf_xlsr.evaluation import senteval_classifiers
from hf_xlsr.evaluation.senteval_classifiers import (
    Group,
    Schedule,
    TrainedGroup,
    accuracy_score,
    best_decay,
    relatedness,
    score_bins,
    train_classifiers,
    with_constant,
)

# Batches of 8: three groups have 9 batches a pass, with 1, 3 and 8 rows in the last; two have 8, with 8 and 5 rows.
LENGTHS = (65, 67, 72, 64, 61)
DECAYS = (1e-5, 1e-3, 1e-2, 0.3)  # far apart, so that classifiers end at different times


def noisy_classes(classes: int) -> tuple[np.ndarray, np.ndarray]:
    """A hundred unit vectors, float64, and the number of the nearest of some directions, seen through noise."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(100, 21))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    logits = vectors @ random.normal(size=(21, classes)) + 0.4 * random.normal(size=(100, classes))
    return vectors, logits.argmax(1)


def some_groups() -> list[Group]:
    random = np.random.default_rng(3)
    groups = []
    for length in LENGTHS:
        order = random.permutation(100)
        groups.append(Group(order[:length], order[length : length + 20], DECAYS))
    return groups


def train(schedule: Schedule, seed: int = 1111, *, classes: int = 2, device: str = "cpu") -> list[TrainedGroup]:
    vectors, labels = noisy_classes(classes)
    features = with_constant(vectors, device)
    numbers = torch.from_numpy(labels).to(device)
    targets = F.one_hot(numbers).to(features.dtype)
    score = accuracy_score(numbers)
    return train_classifiers(features, 21, targets, some_groups(), score, schedule=schedule, seed=seed)


@pytest.mark.parametrize("classes", [2, 3])
def test_equals_one_at_a_time(classes: int):
    vectors, labels = noisy_classes(classes)
    schedule = Schedule(batch_size=8, passes_per_check=2, tenacity=5, max_passes=60)
    passes = np.zeros((len(LENGTHS), len(DECAYS)))
    trained = train(schedule, seed=7, classes=classes)

    for number, (group, together) in enumerate(zip(some_groups(), trained, strict=True)):
        train_vectors = vectors[group.train]
        train_labels = labels[group.train]
        dev = vectors[group.dev], labels[group.dev]
        for column, decay in enumerate(DECAYS):
            options = {"decay": decay, "schedule": schedule, "seed": 7, "classes": classes}
            alone = train_alone(train_vectors, train_labels, dev, **options)
            passes[number, column] = alone.passes

            assert together.scores[column] == alone.score
            weights = together.weights[column].numpy()
            np.testing.assert_allclose(weights[:, :21], alone.model.weight.numpy(), rtol=0, atol=1e-8)
            np.testing.assert_allclose(weights[:, 21], alone.model.bias.numpy(), rtol=0, atol=1e-8)
            assert not weights[:, 22:].any()  # what pads the features has no weight

    assert len(set(passes.max(axis=1))) > 1, "groups have to leave the stack at different times"
    assert (passes.min(axis=1) < passes.max(axis=1)).any(), "classifiers have to end before others of their group"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_accelerator():
    on_cpu = train(Schedule(max_passes=40))
    on_cuda = train(Schedule(max_passes=40), device="cuda")
    for first, second in zip(on_cpu, on_cuda, strict=True):
        np.testing.assert_array_equal(first.scores, second.scores)
        torch.testing.assert_close(first.weights, second.weights.cpu(), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("accuracies", "decay", "dev"),
    [
        ([[0.8, 0.9, 0.7, 0.6], [0.8, 0.5, 0.7, 0.6]], 1e-5, 0.8),
        # 80.123 % and 80.124 % are equal when rounded: the smaller weight decay is taken, with its own accuracy.
        ([[0.80123, 0.80124, 0.7, 0.7]], 1e-5, 0.80123),
    ],
)
def test_chosen_weight_decay(accuracies: list[list[float]], decay: float, dev: float):
    assert best_decay(np.array(accuracies)) == (decay, pytest.approx(dev))


def test_relatedness_equals_the_toolkit(monkeypatch: pytest.MonkeyPatch):
    random = np.random.default_rng(0)
    features = random.normal(size=(260, 20))
    noise = 0.5 * random.normal(size=260)
    scores = 3 + features @ random.normal(size=20) / 20**0.5 + noise
    scores = np.clip(scores, 0, 5)
    order = np.random.default_rng(1).permutation(260)
    train_rows, dev, test = np.split(order, [150, 200])

    schedule = Schedule(passes_per_check=6, tenacity=3, max_passes=200)
    monkeypatch.setattr(senteval_classifiers, "RELATEDNESS", schedule)

    def predict(model: nn.Linear, rows: np.ndarray) -> np.ndarray:
        shares = model(torch.from_numpy(features[rows])).softmax(1).numpy()
        return shares @ np.arange(1, 6)

    np.random.seed(3)
    torch.manual_seed(3)
    alone = train_model(
        features[train_rows],
        torch.from_numpy(score_bins(scores[train_rows])),
        lambda logits, shares: F.mse_loss(logits.softmax(1), shares),
        lambda model: pearsonr(predict(model, dev), scores[dev]).statistic,
        schedule=schedule,
        outputs=5,
    )
    predicted = predict(alone.model, test)
    gold = scores[test]
    expected = {
        "pearson": pearsonr(predicted, gold).statistic,
        "spearman": spearmanr(predicted, gold).statistic,
        "mse": ((predicted - gold) ** 2).mean(),
    }

    dev_score, tested, _ = relatedness(features, scores, train_rows, dev, test, seed=3)
    assert dev_score == pytest.approx(alone.score, abs=1e-8)
    assert tested == pytest.approx(expected, abs=1e-8)
    assert 0.5 < tested["pearson"] < 0.99
