"""SentEval's classifier as its toolkit trains it: one at a time, by autograd, `torch.optim` and the global generators."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn

from hf_xlsr.evaluation.senteval_classifiers import Schedule

DECAYS = [10**power for power in range(-5, -1)]


class Alone(NamedTuple):
    score: float
    model: nn.Linear
    passes: int

    def predict(self, vectors: np.ndarray) -> np.ndarray:
        return self.model(torch.from_numpy(vectors)).argmax(1).numpy()


def train_model(
    vectors: np.ndarray,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    score: Callable[[nn.Linear], float],
    *,
    decay: float = 0,
    schedule: Schedule,
    outputs: int,
) -> Alone:
    """Trains one layer with the global generators; keeps the check with the best score."""
    inputs = torch.from_numpy(vectors)
    model = nn.Linear(vectors.shape[1], outputs).to(inputs.dtype)
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=decay)
    best_score = -1.0
    best_state = model.state_dict()
    passes = 0
    misses = 0

    while passes <= schedule.max_passes and misses <= schedule.tenacity:
        for _ in range(schedule.passes_per_check):
            for rows in torch.from_numpy(np.random.permutation(len(inputs))).split(schedule.batch_size):
                optimizer.zero_grad()
                loss(model(inputs[rows]), targets[rows]).backward()
                optimizer.step()
        passes += schedule.passes_per_check

        with torch.no_grad():
            new_score = score(model)
        if new_score > best_score:
            best_score = new_score
            best_state = copy.deepcopy(model.state_dict())
        else:
            misses += 1

    model.load_state_dict(best_state)
    return Alone(best_score, model.requires_grad_(False), passes)


def train_alone(
    vectors: np.ndarray,
    labels: np.ndarray,
    dev: tuple[np.ndarray, np.ndarray] | None,
    *,
    seed: int = 1111,
    classes: int | None = None,
    **options: Any,
) -> Alone:
    """One classifier; without dev rows a twentieth of the rows is held out."""
    np.random.seed(seed)
    torch.manual_seed(seed)
    outputs = classes or int(labels.max()) + 1
    if dev is None:
        order = np.random.permutation(len(vectors))
        cut = int(0.05 * len(vectors))
        dev = vectors[order[:cut]], labels[order[:cut]]
        vectors = vectors[order[cut:]]
        labels = labels[order[cut:]]

    dev_vectors, dev_labels = map(torch.from_numpy, dev)

    def score(model: nn.Linear) -> float:
        predicted = model(dev_vectors).argmax(1)
        return float(np.mean((predicted == dev_labels).numpy()))

    return train_model(vectors, torch.from_numpy(labels), F.cross_entropy, score, outputs=outputs, **options)


def folds_alone(
    vectors: np.ndarray, labels: np.ndarray, folds: int, folds_seed: int, **options: Any
) -> tuple[float, float]:
    """The weight decay that folds of the rows choose, and its mean accuracy."""
    splits = list(StratifiedKFold(folds, shuffle=True, random_state=folds_seed).split(vectors, labels))
    means = []
    for decay in DECAYS:
        scores = []
        for train, dev in splits:
            alone = train_alone(vectors[train], labels[train], (vectors[dev], labels[dev]), decay=decay, **options)
            scores.append(alone.score)
        means.append(float(np.mean(scores)))

    rounded = [round(100 * mean, 2) for mean in means]
    best = rounded.index(max(rounded))
    return DECAYS[best], means[best]


def nested_alone(vectors: np.ndarray, labels: np.ndarray, folds: int, **options: Any) -> tuple[float, float]:
    """Dev and test accuracy of nested cross-validation."""
    dev_accuracies = []
    test_accuracies = []
    for train, test in StratifiedKFold(folds, shuffle=True, random_state=1111).split(vectors, labels):
        decay, dev_accuracy = folds_alone(vectors[train], labels[train], folds, 1111, **options)
        final = train_alone(vectors[train], labels[train], None, decay=decay, **options)
        dev_accuracies.append(dev_accuracy)
        test_accuracies.append(np.mean(final.predict(vectors[test]) == labels[test]))
    return float(np.mean(dev_accuracies)), float(np.mean(test_accuracies))
