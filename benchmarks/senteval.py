"""SentEval's nested cross-validation: all classifiers stacked, against one after another.

Both train on the same synthetic vectors with the same weights, orders and folds. one by one: `torch.nn.Linear` and
`torch.optim` for a sample of the inner classifiers; its seconds are extrapolated. Their dev accuracies must be
those of the stack.
"""

from __future__ import annotations

import time

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.model_selection import StratifiedKFold

from benchmarks.harness import Job, Step
from hf_xlsr.evaluation.senteval import (
    NESTED_SEED,
    SETTINGS,
    WEIGHT_DECAYS,
    Classification,
    Group,
    Schedule,
    accuracy_score,
    train_classifiers,
    with_constant,
)

SIDES = ("stacked", "one by one")
DEFAULTS: Job = {"rows": 10_000, "width": 768, "settings": ["literature", "fast"], "sample": 2}
GRID = {"setting": "settings"}
QUICK: Job = {"rows": 200, "width": 16, "settings": ["fast"], "sample": 1}
SEED = 1111
TOLERANCE = 0.005  # both sum in float32, in different orders
ALONE, MEMORY = True, False


def train_alone(vectors: np.ndarray, labels: np.ndarray, group: Group, decay: float, schedule: Schedule) -> float:
    """One classifier as SentEval trains it; returns the best dev accuracy."""
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    model = torch.nn.Linear(vectors.shape[1], int(labels.max()) + 1)
    kind = torch.optim.Adam if schedule.optimizer == "adam" else torch.optim.RMSprop
    optimizer = kind(model.parameters(), weight_decay=decay)
    inputs, targets = torch.from_numpy(vectors[group.train]), torch.from_numpy(labels[group.train])
    dev_inputs, dev_targets = torch.from_numpy(vectors[group.dev]), torch.from_numpy(labels[group.dev])
    best, misses, passes = -1.0, 0, 0
    while misses <= schedule.tenacity and passes <= schedule.max_passes:
        for _ in range(schedule.passes_per_check):
            for rows in torch.from_numpy(np.random.permutation(len(inputs))).split(schedule.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
                optimizer.step()
        passes += schedule.passes_per_check
        with torch.no_grad():
            accuracy = float((model(dev_inputs).argmax(1) == dev_targets).double().mean())
        best, misses = (accuracy, misses) if accuracy > best else (best, misses + 1)
    return best


def prepare(job: Job, sides: list[str]) -> Step:
    random = np.random.default_rng(1)
    vectors = random.normal(size=(job["rows"], job["width"]))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = (vectors @ random.normal(size=job["width"]) + 0.3 * random.normal(size=job["rows"]) > 0).astype(np.int64)
    vectors = vectors.astype(np.float32)
    _, folds, schedule = SETTINGS[job["setting"]]
    total = folds * (folds * len(WEIGHT_DECAYS) + 1)

    def step(side: str, warm_up: bool) -> dict[str, float]:
        if warm_up:
            return {}
        if side == "stacked":
            task = Classification(vectors, labels, schedule=schedule, folds=folds, seed=SEED, device="cpu")
            outcome = task.nested(np.arange(len(labels)))
            return {"classifiers": total, "dev_accuracy": outcome.dev, "test_accuracy": outcome.test}
        splitter = StratifiedKFold(folds, shuffle=True, random_state=NESTED_SEED)
        groups = []
        for train, _ in list(splitter.split(labels, labels))[: job["sample"]]:
            inner, dev = next(iter(splitter.split(train, labels[train])))
            groups.append(Group(train[inner], train[dev], WEIGHT_DECAYS))
        torch.set_num_threads(1)  # two threads are slower than one on operations this small
        started = time.perf_counter()
        scores = [[train_alone(vectors, labels, one, decay, schedule) for decay in WEIGHT_DECAYS] for one in groups]
        seconds = (time.perf_counter() - started) * total / (len(groups) * len(WEIGHT_DECAYS))
        features, numbers = with_constant(vectors, torch.device("cpu")), torch.from_numpy(labels)
        score, classes = accuracy_score(numbers), F.one_hot(numbers).to(features)
        stack = train_classifiers(features, job["width"], classes, groups, score, schedule=schedule, seed=SEED)
        difference = float(np.abs(np.array(scores) - np.array([one.scores for one in stack])).max())
        if difference > TOLERANCE:
            raise RuntimeError(f"Dev accuracies of the two sides differ by {difference:.4f}.")
        return {"seconds": seconds, "classifiers": total, "largest_difference": difference}

    return step
