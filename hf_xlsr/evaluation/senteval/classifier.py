"""SentEval's classifiers: many linear layers trained together as one stack of matrices.

A nested cross-validation trains 410 classifiers; one after another, that is nearly all overhead. Here the classifiers
of one fold, which differ in weight decay only, share their batches, and several folds share each operation. Each fold
keeps its own batches, in SentEval's order, so that the results are SentEval's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

# On a CPU the batches, weights and moments of a stack should fit in the cache of one core: 300 KiB for a group of four
# classifiers with two outputs and width 768. An accelerator is faster with larger stacks.
GROUPS_ON_CPU = 5
GROUPS_ON_ACCELERATOR = 128
ALIGNMENT = 16  # rows of features start at multiples of it, which are faster to read


@dataclass(frozen=True)
class Schedule:
    """How a classifier is trained; the defaults are SentEval's for published results."""

    optimizer: Literal["adam", "rmsprop"] = "adam"  # learning rate 1e-3 or 1e-2
    batch_size: int = 64
    passes_per_check: int = 4  # SentEval's `epoch_size`
    tenacity: int = 5  # checks without improvement in the whole training that are allowed; one more ends it
    max_passes: int = 200  # the first check after more passes ends the training


class Group(NamedTuple):
    """Classifiers with the same rows in the same order, which differ in weight decay only.

    `dev` rows choose the best check; `random` gives the order of each pass, by default seeded as the training.
    """

    train: np.ndarray
    dev: np.ndarray
    weight_decays: Sequence[float]
    random: np.random.RandomState | None = None


class TrainedGroup(NamedTuple):
    """For each classifier of a group: its best dev score, its weights then, for `logits_of`, and the passes it took."""

    scores: np.ndarray  # (classifiers,)
    weights: Tensor  # (classifiers, outputs, padded width)
    passes: np.ndarray  # (classifiers,)


# From logits (groups, classifiers, outputs, batch) and targets (groups, 1, outputs, batch) to the gradient of each
# row's loss with respect to its logits. It may overwrite the logits.
Slope = Callable[[Tensor, Tensor], Tensor]
# From logits (rows, classifiers, outputs) and the indices of the rows to one score for each classifier; more is better.
Score = Callable[[Tensor, Tensor], np.ndarray]


def cross_entropy_slope(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.softmax(2).sub_(targets)


def accuracy_score(labels: Tensor) -> Score:
    """A score for `train_classifiers`: the accuracy of the largest logit; `labels` are the numbers of all rows."""

    def accuracy(logits: Tensor, rows: Tensor) -> np.ndarray:
        return (logits.argmax(2) == labels[rows, None]).sum(0).cpu().numpy() / len(rows)

    return accuracy


def with_constant(vectors: np.ndarray, device: torch.device) -> Tensor:
    """Vectors `(rows, width)` with one more feature that is always 1, whose weight is the bias, padded with zeros."""
    rows, width = vectors.shape
    # NumPy asks the system for large pages, which makes random access faster.
    features = np.zeros((rows, -(-(width + 1) // ALIGNMENT) * ALIGNMENT), vectors.dtype)
    features[:, :width] = vectors
    features[:, width] = 1
    return torch.from_numpy(features).to(device)


def logits_of(weights: Tensor, features: Tensor) -> Tensor:
    """Logits `(rows, classifiers, outputs)` of features under the classifiers of a group, by their weights."""
    return (features @ weights.flatten(0, 1).T).unflatten(1, weights.shape[:2])


def train_classifiers(
    features: Tensor,
    width: int,
    targets: Tensor,
    groups: Sequence[Group],
    score: Score,
    *,
    schedule: Schedule,
    seed: int,
    slope: Slope = cross_entropy_slope,
) -> list[TrainedGroup]:
    """Trains every classifier of every group; each result equals that of training it alone.

    SentEval resets its generators for each classifier, and so does this: all start from the weights of
    `torch.nn.Linear` after `torch.manual_seed(seed)`, and the order of each pass is the next permutation of NumPy's
    `RandomState(seed)`.

    Args:
        features: From `with_constant`, `(rows, padded width)`.
        width: Width of the vectors without constant and padding.
        targets: Target of the outputs, `(rows, outputs)`.
        score: Of classifiers on dev rows; the first of the best checks is kept.
        slope: Gradient of a row's loss, which is averaged over the batch.
    """
    start = torch.zeros(targets.shape[1], features.shape[1], dtype=features.dtype)
    start[:, : width + 1] = _fresh_layer(width, targets.shape[1], seed)
    start = start.to(features.device)
    stacks = list(_stacks(groups, features.device, schedule.batch_size))

    def train(stack: list[int]) -> list[TrainedGroup]:
        members = [groups[number] for number in stack]
        return _Stack(features, targets, start, members, schedule, seed).train(slope, score)

    threads = torch.get_num_threads()
    workers = min(threads, len(stacks)) if features.device.type == "cpu" else 1
    # One core per stack: sharing operations as small as these between cores loses time.
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            results = list(pool.map(train, stacks))
        finally:
            torch.set_num_threads(threads)  # of threads that start later
    by_number = dict(
        zip((number for stack in stacks for number in stack), (t for r in results for t in r), strict=True)
    )
    return [by_number[number] for number in range(len(groups))]


def _fresh_layer(width: int, outputs: int, seed: int) -> Tensor:
    """Weights and, as the last column, biases of a new linear layer: `(outputs, width + 1)`."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed accelerators
        layer = nn.Linear(width, outputs)
    return torch.cat([layer.weight, layer.bias[:, None]], dim=1).detach()


def _stacks(groups: Sequence[Group], device: torch.device, batch_size: int) -> Iterator[list[int]]:
    """Indices of groups that are trained in step: with as many batches per pass and as many classifiers."""
    at_once = GROUPS_ON_CPU if device.type == "cpu" else GROUPS_ON_ACCELERATOR
    alike: dict[tuple[int, int], list[int]] = {}
    for number, group in enumerate(groups):
        alike.setdefault((-(-len(group.train) // batch_size), len(group.weight_decays)), []).append(number)
    for numbers in alike.values():
        for first in range(0, len(numbers), at_once):
            yield numbers[first : first + at_once]


class _Stack:
    """Groups with as many batches per pass and as many classifiers, trained in step until each is out of patience."""

    def __init__(
        self,
        features: Tensor,
        targets: Tensor,
        start: Tensor,
        groups: Sequence[Group],
        schedule: Schedule,
        seed: int,
    ) -> None:
        self.features, self.targets, self.schedule = features, targets, schedule
        self.groups = list(groups)
        self.random = [group.random or np.random.RandomState(seed) for group in groups]
        self.classifiers, self.outputs = len(groups[0].weight_decays), len(start)
        self.weights = start.repeat(len(groups), self.classifiers, 1)  # (groups, classifiers * outputs, padded width)
        decays = torch.tensor([list(group.weight_decays) for group in groups]).to(start)
        self.decays = decays.repeat_interleave(self.outputs, dim=1)[:, :, None]
        self.weights.grad = self.gradient = torch.empty_like(self.weights)
        self.optimizer = (
            torch.optim.Adam([self.weights], lr=1e-3, fused=True)
            if schedule.optimizer == "adam"
            else torch.optim.RMSprop([self.weights], lr=1e-2, foreach=False)
        )
        self.batch = features.new_empty(len(groups) * schedule.batch_size, features.shape[1])

    def train(self, slope: Slope, score: Score) -> list[TrainedGroup]:
        shape = len(self.groups), self.classifiers
        best, misses, passes = np.full(shape, -1.0), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        kept = self.weights.unflatten(1, (self.classifiers, self.outputs)).clone()
        running = np.ones(shape, bool)
        present = np.arange(shape[0])  # the groups that are still in the stack
        done = 0
        while len(present) and done <= self.schedule.max_passes:
            for _ in range(self.schedule.passes_per_check):
                self._pass(slope)
            done += self.schedule.passes_per_check
            weights = self.weights.unflatten(1, (self.classifiers, self.outputs))
            for place, number in enumerate(present):
                dev = torch.from_numpy(self.groups[place].dev).to(self.features.device)
                scores = score(logits_of(weights[place], self.features[dev]), dev)
                better = running[number] & (scores > best[number])
                best[number, better] = scores[better]
                kept[number, torch.from_numpy(better)] = weights[place, torch.from_numpy(better)]
                passes[number, running[number]] = done
                misses[number, running[number] & ~better] += 1
            running &= misses <= self.schedule.tenacity
            going = running[present].any(axis=1)
            if not going.all():
                self._keep(np.flatnonzero(going))
                present = present[going]
        return [TrainedGroup(*parts) for parts in zip(best, kept, passes, strict=True)]

    def _pass(self, slope: Slope) -> None:
        size = self.schedule.batch_size
        lengths = np.array([len(group.train) for group in self.groups])
        steps = -(-lengths[0] // size)
        order = np.zeros((len(lengths), steps * size), np.int64)
        for row, group, random in zip(order, self.groups, self.random, strict=True):
            row[: len(group.train)] = group.train[random.permutation(len(group.train))]
        rows = torch.from_numpy(order).view(-1, steps, size).transpose(0, 1).contiguous().to(self.features.device)
        targets = self.targets[rows].transpose(2, 3)[:, :, None].contiguous()  # (steps, groups, 1, outputs, batch)
        rows = rows.flatten(1)
        for step in range(steps - 1):
            self._step(rows[step], targets[step], 1 / size, slope)
        # In the last batch groups may have different numbers of rows: it is padded with rows of weight 0.
        left = lengths - (steps - 1) * size
        shares = torch.from_numpy((np.arange(size) < left[:, None]) / left[:, None]).to(self.weights)
        self._step(rows[-1], targets[-1], shares[:, None, None], slope)

    def _step(self, rows: Tensor, targets: Tensor, shares: float | Tensor, slope: Slope) -> None:
        """One batch of every group: `rows` is `(groups * batch,)`; `shares` are the weights of rows in the mean."""
        groups = len(self.weights)
        taken = self.batch[: len(rows)]
        torch.index_select(self.features, 0, rows, out=taken)
        batch = taken.view(groups, -1, taken.shape[1])
        logits = torch.bmm(self.weights, batch.transpose(1, 2))
        slopes = slope(logits.view(groups, self.classifiers, self.outputs, -1), targets).mul_(shares)
        torch.mul(self.weights, self.decays, out=self.gradient)
        self.gradient.baddbmm_(slopes.view_as(logits), batch)
        self.optimizer.step()

    def _keep(self, places: np.ndarray) -> None:
        self.groups = [self.groups[place] for place in places]
        self.random = [self.random[place] for place in places]
        index = torch.from_numpy(places).to(self.weights.device)
        state = self.optimizer.state.pop(self.weights)
        self.weights, self.decays = self.weights[index], self.decays[index]
        self.weights.grad = self.gradient = torch.empty_like(self.weights)
        self.optimizer.param_groups[0]["params"] = [self.weights]
        self.optimizer.state[self.weights] = {
            name: value[index] if value.ndim else value for name, value in state.items()
        }
