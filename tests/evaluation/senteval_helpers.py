"""SentEval's classifier as its toolkit trains it: one at a time, by autograd, `torch.optim` and the global generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn

from hf_xlsr.evaluation.senteval import Schedule

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
    best, best_model, passes, misses = -1.0, model.state_dict(), 0, 0
    while passes <= schedule.max_passes and misses <= schedule.tenacity:
        for _ in range(schedule.passes_per_check):
            for rows in torch.from_numpy(np.random.permutation(len(inputs))).split(schedule.batch_size):
                optimizer.zero_grad()
                loss(model(inputs[rows]), targets[rows]).backward()
                optimizer.step()
        passes += schedule.passes_per_check
        with torch.no_grad():
            found = score(model)
        if found > best:
            best, best_model = found, {name: value.clone() for name, value in model.state_dict().items()}
        else:
            misses += 1
    model.load_state_dict(best_model)
    return Alone(best, model.requires_grad_(False), passes)


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
        vectors, labels = vectors[order[cut:]], labels[order[cut:]]
    held_out, truth = torch.from_numpy(dev[0]), dev[1]

    def score(model: nn.Linear) -> float:
        return float((model(held_out).argmax(1).numpy() == truth).mean())

    return train_model(vectors, torch.from_numpy(labels), F.cross_entropy, score, outputs=outputs, **options)


def folds_alone(
    vectors: np.ndarray, labels: np.ndarray, folds: int, folds_seed: int, **options: Any
) -> tuple[float, float]:
    """The weight decay that folds of the rows choose, and its mean accuracy."""
    splits = list(StratifiedKFold(folds, shuffle=True, random_state=folds_seed).split(vectors, labels))
    means = []
    for decay in DECAYS:
        scores = [
            train_alone(vectors[train], labels[train], (vectors[dev], labels[dev]), decay=decay, **options).score
            for train, dev in splits
        ]
        means.append(float(np.mean(scores)))
    rounded = [round(100 * mean, 2) for mean in means]
    best = rounded.index(max(rounded))
    return DECAYS[best], means[best]


def nested_alone(vectors: np.ndarray, labels: np.ndarray, folds: int, **options: Any) -> tuple[float, float]:
    """Dev and test accuracy of nested cross-validation."""
    devs, tests = [], []
    for train, test in StratifiedKFold(folds, shuffle=True, random_state=1111).split(vectors, labels):
        decay, dev = folds_alone(vectors[train], labels[train], folds, 1111, **options)
        devs.append(dev)
        final = train_alone(vectors[train], labels[train], None, decay=decay, **options)
        tests.append(float((final.predict(vectors[test]) == labels[test]).mean()))
    return float(np.mean(devs)), float(np.mean(tests))
