"""SentEval's classifier as its toolkit trains it: one at a time, by autograd, `torch.optim` and the global generators."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold
from torch import nn

from hf_xlsr.evaluation.senteval.classifier import Schedule

DECAYS = [10**power for power in range(-5, -1)]
OPTIMIZERS = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}


class Alone(NamedTuple):
    score: float
    model: nn.Linear
    passes: int

    def predict(self, vectors: np.ndarray) -> np.ndarray:
        return self.model(torch.from_numpy(vectors)).argmax(1).numpy()


def train_alone(
    vectors: np.ndarray,
    labels: np.ndarray,
    dev: tuple[np.ndarray, np.ndarray] | None,
    *,
    decay: float,
    schedule: Schedule,
    seed: int = 1111,
    classes: int | None = None,
) -> Alone:
    """One classifier; without dev rows a twentieth of the rows is held out."""
    np.random.seed(seed)
    torch.manual_seed(seed)
    model = nn.Linear(vectors.shape[1], classes or int(labels.max()) + 1).to(torch.from_numpy(vectors).dtype)
    optimizer = OPTIMIZERS[schedule.optimizer](model.parameters(), weight_decay=decay)
    if dev is None:
        order = np.random.permutation(len(vectors))
        cut = int(0.05 * len(vectors))
        dev = vectors[order[:cut]], labels[order[:cut]]
        vectors, labels = vectors[order[cut:]], labels[order[cut:]]
    inputs, targets = torch.from_numpy(vectors), torch.from_numpy(labels)
    best, best_model, passes, misses = -1.0, None, 0, 0
    while passes <= schedule.max_passes:
        for _ in range(schedule.passes_per_check):
            order = torch.from_numpy(np.random.permutation(len(inputs)))
            for rows in order.split(schedule.batch_size):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
                optimizer.step()
        passes += schedule.passes_per_check
        with torch.no_grad():
            score = float((model(torch.from_numpy(dev[0])).argmax(1).numpy() == dev[1]).mean())
        if score > best:
            best = score
            best_model = {name: value.clone() for name, value in model.state_dict().items()}
        else:
            misses += 1
            if misses == schedule.tenacity + 1:
                break
    assert best_model is not None
    model.load_state_dict(best_model)
    return Alone(best, model.requires_grad_(False), passes)


def choose(means: list[float]) -> tuple[float, float]:
    """The weight decay that is taken, and its mean accuracy."""
    rounded = [round(100 * mean, 2) for mean in means]
    return DECAYS[rounded.index(max(rounded))], means[rounded.index(max(rounded))]


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
    return choose(means)


def nested_alone(vectors: np.ndarray, labels: np.ndarray, folds: int, **options: Any) -> tuple[float, float]:
    """Dev and test accuracy of nested cross-validation."""
    devs, tests = [], []
    for train, test in StratifiedKFold(folds, shuffle=True, random_state=1111).split(vectors, labels):
        decay, dev = folds_alone(vectors[train], labels[train], folds, 1111, **options)
        devs.append(dev)
        final = train_alone(vectors[train], labels[train], None, decay=decay, **options)
        tests.append(float((final.predict(vectors[test]) == labels[test]).mean()))
    return float(np.mean(devs)), float(np.mean(tests))


def noisy_classes(rows: int, width: int, classes: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors, float64, and the number of the nearest of some directions, seen through noise."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(rows, width))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    logits = vectors @ random.normal(size=(width, classes)) + noise * random.normal(size=(rows, classes))
    return vectors, logits.argmax(1)
