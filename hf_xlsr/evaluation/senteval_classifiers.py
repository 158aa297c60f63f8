"""SentEval's classifiers, many linear layers trained together as one stack of matrices, and its ways to test.

A nested cross-validation trains 410 classifiers; one after another, that is nearly all overhead. Here the classifiers
of one fold, which differ in weight decay only, share their batches, and several folds share each operation. Each fold
keeps its own batches, in SentEval's order, so that the results are SentEval's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn

from hf_xlsr.evaluation.outcomes import pearson, spearman

# On a CPU a stack should fit in the cache of one core: 300 KiB for four classifiers with two outputs and width 768.
GROUPS_ON_CPU = 5
GROUPS_ON_ACCELERATOR = 128
ALIGNMENT = 16  # rows of features start at multiples of it, which are faster to read
WEIGHT_DECAYS = (1e-5, 1e-4, 1e-3, 1e-2)
NESTED_SEED = 1111  # of the folds of nested cross-validation; the seed of the classifiers does not change them
SCORES = np.arange(1, 6)
HELD_OUT = 0.05  # of the training rows, to choose the check on after the weight decay


@dataclass(frozen=True)
class Schedule:
    """How a classifier is trained; the defaults are SentEval's for published results."""

    batch_size: int = 64
    passes_per_check: int = 4  # SentEval's `epoch_size`
    tenacity: int = 5  # checks without improvement in the whole training that are allowed; one more ends it
    max_passes: int = 200  # the first check after more passes ends the training


FOLDS, SCHEDULE = 10, Schedule()
RELATEDNESS = Schedule(passes_per_check=50, tenacity=3, max_passes=1000)


class Group(NamedTuple):
    """Classifiers with the same rows in the same order, which differ in weight decay only.

    `dev` rows choose the best check; `random` gives the order of each pass, by default seeded as the training.
    """

    train: np.ndarray
    dev: np.ndarray
    weight_decays: Sequence[float]
    random: np.random.RandomState | None = None


Fold = tuple[np.ndarray, np.ndarray]  # rows to train on and the others


class TrainedGroup(NamedTuple):
    """The best dev score of each classifier of a group, and its weights at that time, as `logits_of` takes them."""

    scores: np.ndarray  # (classifiers,)
    weights: Tensor  # (classifiers, outputs, padded width)


# From logits (groups, classifiers, outputs, batch) and targets (groups, 1, outputs, batch) to the gradient of each
# row's loss with respect to its logits. It may overwrite the logits.
Slope = Callable[[Tensor, Tensor], Tensor]
# From logits (rows, classifiers, outputs) and the indices of the rows to one score for each classifier; more is better.
Score = Callable[[Tensor, np.ndarray], np.ndarray]


def cross_entropy_slope(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.softmax(2).sub_(targets)


def accuracy_score(labels: Tensor) -> Score:
    def accuracy(logits: Tensor, rows: np.ndarray) -> np.ndarray:
        is_right = logits.argmax(2) == labels[rows][:, None]
        accuracies: np.ndarray = is_right.sum(0).cpu().numpy() / len(rows)
        return accuracies

    return accuracy


def with_constant(vectors: np.ndarray, device: torch.device | str) -> Tensor:
    """Vectors `(rows, width)` with one more feature that is always 1, whose weight is the bias, padded with zeros."""
    rows, width = vectors.shape
    padded_width = ALIGNMENT * math.ceil((width + 1) / ALIGNMENT)
    # NumPy asks the system for large pages, which makes random access faster.
    features = np.zeros((rows, padded_width), vectors.dtype)
    features[:, :width] = vectors
    features[:, width] = 1
    return torch.from_numpy(features).to(device)


def logits_of(weights: Tensor, features: Tensor) -> Tensor:
    """Logits `(rows, classifiers, outputs)` of features under the classifiers of a group, by their weights."""
    logits = features @ weights.flatten(0, 1).T
    return torch.unflatten(logits, 1, weights.shape[:2])


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

    `features` are those of `with_constant`, `(rows, padded width)`, of vectors of `width`; `targets` are
    `(rows, outputs)`. SentEval resets its generators for each classifier, and so does this: all start from the weights
    of `torch.nn.Linear` after `torch.manual_seed(seed)`, and the order of each pass is the next permutation of NumPy's
    `RandomState(seed)`. The first of the checks with the best score is kept.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed accelerators
        layer = nn.Linear(width, targets.shape[1]).requires_grad_(False)
    start = features.new_zeros(targets.shape[1], features.shape[1])
    start[:, :width] = layer.weight
    start[:, width] = layer.bias
    stacks = list(_stacks(groups, features.device, schedule.batch_size))

    def train(group_numbers: list[int]) -> list[TrainedGroup]:
        members = [groups[number] for number in group_numbers]
        return _Stack(features, targets, start, members, schedule, seed, slope).train(score)

    threads = torch.get_num_threads()
    workers = min(threads, len(stacks)) if features.device.type == "cpu" else 1
    trained: dict[int, TrainedGroup] = {}
    # One core per stack: sharing operations as small as these between cores loses time.
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            for group_numbers, trained_groups in zip(stacks, pool.map(train, stacks), strict=True):
                trained.update(zip(group_numbers, trained_groups, strict=True))
        finally:
            torch.set_num_threads(threads)  # of threads that start later
    return [trained[number] for number in range(len(groups))]


def _stacks(groups: Sequence[Group], device: torch.device, batch_size: int) -> Iterator[list[int]]:
    """Indices of groups that are trained in step: with as many batches per pass and as many classifiers."""
    at_once = GROUPS_ON_CPU if device.type == "cpu" else GROUPS_ON_ACCELERATOR
    numbers_by_shape = defaultdict(list)
    for number, group in enumerate(groups):
        steps = math.ceil(len(group.train) / batch_size)
        numbers_by_shape[steps, len(group.weight_decays)].append(number)
    for numbers in numbers_by_shape.values():
        for first in range(0, len(numbers), at_once):
            yield numbers[first : first + at_once]


class _Stack:
    """Groups with as many batches per pass and as many classifiers, trained in step until all are out of patience.

    A group that is out of patience is trained on for nothing. To take it out, with the state of its optimizer, would save
    about a seventh of the passes.
    """

    def __init__(
        self,
        features: Tensor,
        targets: Tensor,
        start: Tensor,
        groups: list[Group],
        schedule: Schedule,
        seed: int,
        slope: Slope,
    ) -> None:
        self.features = features
        self.targets = targets
        self.groups = groups
        self.schedule = schedule
        self.slope = slope
        self.classifiers = len(groups[0].weight_decays)
        self.outputs = len(start)

        self.random = [group.random or np.random.RandomState(seed) for group in groups]
        self.weights = start.repeat(len(groups), self.classifiers, 1)  # (groups, classifiers * outputs, padded width)
        decays = torch.tensor([list(group.weight_decays) for group in groups]).to(start)
        self.decays = decays.repeat_interleave(self.outputs, dim=1)[:, :, None]
        self.weights.grad = self.gradient = torch.empty_like(self.weights)
        self.optimizer = torch.optim.Adam([self.weights], fused=True)
        self.batch = features.new_empty(len(groups) * schedule.batch_size, features.shape[1])

    def train(self, score: Score) -> list[TrainedGroup]:
        """Trains until every classifier has missed an improvement too often, and returns the best check of each."""
        shape = len(self.groups), self.classifiers
        best_scores = np.full(shape, -1.0)
        weights = torch.unflatten(self.weights, 1, (self.classifiers, self.outputs))  # a view
        best_weights = weights.clone()
        misses = np.zeros(shape, np.int64)
        running = np.ones(shape, bool)
        passes = 0

        while running.any() and passes <= self.schedule.max_passes:
            for _ in range(self.schedule.passes_per_check):
                self._pass()
            passes += self.schedule.passes_per_check

            for number, group in enumerate(self.groups):
                logits = logits_of(weights[number], self.features[group.dev])
                scores = score(logits, group.dev)
                better = running[number] & (scores > best_scores[number])
                best_scores[number, better] = scores[better]
                chosen = torch.from_numpy(better)
                best_weights[number, chosen] = weights[number, chosen]
                misses[number, ~better] += 1
            running &= misses <= self.schedule.tenacity
        return list(map(TrainedGroup, best_scores, best_weights))

    def _pass(self) -> None:
        """Trains each group once on all of its rows, in the next random order."""
        size = self.schedule.batch_size
        lengths = np.array([len(group.train) for group in self.groups])
        steps = math.ceil(lengths[0] / size)
        order = np.zeros((len(lengths), steps * size), np.int64)
        for group_order, group, random in zip(order, self.groups, self.random, strict=True):
            permutation = random.permutation(len(group.train))
            group_order[: len(permutation)] = group.train[permutation]

        batches = order.reshape(-1, steps, size).swapaxes(0, 1)  # (steps, groups, batch)
        rows = torch.tensor(batches, device=self.features.device)
        targets = self.targets[rows].transpose(2, 3).unsqueeze(2).contiguous()  # (steps, groups, 1, outputs, batch)
        rows = rows.flatten(1)
        for step in range(steps - 1):
            self._step(rows[step], targets[step], 1 / size)

        # In the last batch groups may have different numbers of rows: it is padded with rows of weight 0.
        remaining = (lengths - (steps - 1) * size)[:, None]
        shares = torch.from_numpy((np.arange(size) < remaining) / remaining).to(self.weights)
        self._step(rows[-1], targets[-1], shares[:, None, None])

    def _step(self, rows: Tensor, targets: Tensor, shares: float | Tensor) -> None:
        """One batch of every group: `rows` is `(groups * batch,)`; `shares` are the weights of rows in the mean."""
        groups = len(self.weights)
        batch = self.batch[: len(rows)]
        torch.index_select(self.features, 0, rows, out=batch)
        batch = batch.view(groups, -1, batch.shape[1])
        logits = torch.bmm(self.weights, batch.transpose(1, 2))
        logits_by_classifier = logits.view(groups, self.classifiers, self.outputs, -1)
        slopes = self.slope(logits_by_classifier, targets).mul_(shares)
        torch.mul(self.weights, self.decays, out=self.gradient)
        self.gradient.baddbmm_(slopes.view_as(logits), batch)
        self.optimizer.step()


class Outcome(NamedTuple):
    """Accuracies of the chosen weight decay, and the label number of each test row."""

    dev: float
    test: float
    predicted: np.ndarray


class Classification:
    """Labelled vectors, in SentEval's order, and its ways to train and test classifiers on them.

    The weight decay with the highest mean dev accuracy is chosen, in per cent and rounded to two decimals; of equal ones
    the smallest. `seed` is that of the classifiers, and of the folds of `train_folds`.
    """

    def __init__(
        self,
        vectors: np.ndarray,
        labels: np.ndarray,
        *,
        schedule: Schedule,
        folds: int,
        seed: int = 1111,
        device: torch.device | str = "cpu",
    ) -> None:
        self.labels = labels
        self.width = vectors.shape[1]
        self.schedule = schedule
        self.folds = folds
        self.seed = seed
        self.features = with_constant(vectors, device)
        self.label_numbers = torch.from_numpy(labels).to(device)
        self.targets = F.one_hot(self.label_numbers).to(self.features.dtype)

    def nested(self, rows: np.ndarray) -> Outcome:
        """Tests every row once, by a classifier whose weight decay was chosen in folds of the other rows.

        `dev` and `test` are means over the outer folds.
        """
        outer_folds = self._split(rows, NESTED_SEED)
        inner_folds = []
        for train, _ in outer_folds:
            inner_folds += self._split(train, NESTED_SEED)
        scores = np.array([group.scores for group in self._train_decays(inner_folds)])

        groups = []
        dev_accuracies = []
        scores_of_folds = scores.reshape(len(outer_folds), self.folds, -1)
        for (train, _), fold_scores in zip(outer_folds, scores_of_folds, strict=True):
            decay, dev_accuracy = best_decay(fold_scores)
            groups.append(self._all_of(train, decay))
            dev_accuracies.append(dev_accuracy)

        test_accuracies = []
        predicted = np.empty_like(self.labels)
        for (_, test), final in zip(outer_folds, self._train(groups), strict=True):
            accuracy, predicted[test] = self._test(final.weights[0], test)
            test_accuracies.append(accuracy)
        dev_accuracy = float(np.mean(dev_accuracies))
        test_accuracy = float(np.mean(test_accuracies))
        return Outcome(dev_accuracy, test_accuracy, predicted[rows])

    def train_folds(self, train: np.ndarray, test: np.ndarray) -> Outcome:
        """Chooses the weight decay in folds of the training rows."""
        trained = self._train_decays(self._split(train, self.seed))
        decay, dev_accuracy = best_decay(np.array([group.scores for group in trained]))
        (final,) = self._train([self._all_of(train, decay)])
        return Outcome(dev_accuracy, *self._test(final.weights[0], test))

    def fixed_dev(self, train: np.ndarray, dev: np.ndarray, test: np.ndarray) -> Outcome:
        """Chooses the weight decay and the check on dev rows."""
        (trained,) = self._train_decays([(train, dev)])
        decay, accuracy = best_decay(trained.scores[None])
        # SentEval trains the chosen classifier again, from the same seed and with the same result.
        weights = trained.weights[WEIGHT_DECAYS.index(decay)]
        return Outcome(accuracy, *self._test(weights, test))

    def _split(self, rows: np.ndarray, seed: int) -> list[Fold]:
        splitter = StratifiedKFold(self.folds, shuffle=True, random_state=seed)
        folds = splitter.split(rows, self.labels[rows])
        return [(rows[train], rows[rest]) for train, rest in folds]

    def _all_of(self, train: np.ndarray, decay: float) -> Group:
        """A classifier on the training rows without a few, drawn first, that choose the check."""
        random = np.random.RandomState(self.seed)
        order = random.permutation(len(train))
        held_out = max(1, int(HELD_OUT * len(train)))  # SentEval fails on fewer than 20 rows
        dev, remaining = np.split(train[order], [held_out])
        return Group(remaining, dev, (decay,), random)

    def _train_decays(self, folds: Sequence[Fold]) -> list[TrainedGroup]:
        """Trains a classifier with each weight decay on each fold."""
        return self._train([Group(train, dev, WEIGHT_DECAYS) for train, dev in folds])

    def _train(self, groups: Sequence[Group]) -> list[TrainedGroup]:
        score = accuracy_score(self.label_numbers)
        return train_classifiers(
            self.features, self.width, self.targets, groups, score, schedule=self.schedule, seed=self.seed
        )

    def _test(self, weights: Tensor, test: np.ndarray) -> tuple[float, np.ndarray]:
        """The accuracy of a classifier, whose weights are `(outputs, padded width)`, and the labels it predicts."""
        logits = self.features[test] @ weights.T
        predicted = logits.argmax(1).cpu().numpy()
        is_right = predicted == self.labels[test]
        return float(is_right.mean()), predicted


def best_decay(accuracies: np.ndarray) -> tuple[float, float]:
    """The weight decay with the highest mean accuracy, and that mean, of accuracies `(folds, weight decays)`."""
    means = accuracies.mean(axis=0)
    rounded_means = [round(100 * mean, 2) for mean in means]
    best = int(np.argmax(rounded_means))
    return WEIGHT_DECAYS[best], float(means[best])


def score_bins(scores: np.ndarray) -> np.ndarray:
    """Scores from 0 to 5, `(n,)`, as shares of the two nearest integers, `(n, 5)`, float64.

    SentEval has bins for 1 to 5 only. A score below 1, as in STS-B, has a share of its own size in bin 1 and nothing
    elsewhere.

    Examples:
        >>> score_bins(np.array([4.0, 2.25, 0.5]))
        array([[0.  , 0.  , 0.  , 1.  , 0.  ],
               [0.  , 0.75, 0.25, 0.  , 0.  ],
               [0.5 , 0.  , 0.  , 0.  , 0.  ]])
    """
    distances = np.abs(scores[:, None] - SCORES)
    shares: np.ndarray = np.clip(1 - distances, 0, None)
    return shares


def squared_error_slope(logits: Tensor, targets: Tensor) -> Tensor:
    """Gradient of the mean squared error of the softmax with respect to the logits; targets are shares."""
    shares = logits.softmax(2)
    slopes = (shares - targets).mul_(2 / logits.shape[2])
    return slopes.sub_((slopes * shares).sum(2, keepdim=True)).mul_(shares)


def relatedness(
    features: np.ndarray,
    scores: np.ndarray,
    train: np.ndarray,
    dev: np.ndarray,
    test: np.ndarray,
    *,
    seed: int = 1111,
    device: torch.device | str = "cpu",
) -> tuple[float, dict[str, float], np.ndarray]:
    """Trains a predictor of pair scores from 0 to 5: the mean of the scores 1 to 5 under the predicted shares.

    Adam, batches of 64, no weight decay. A check every 50 passes keeps the best weights by Pearson's correlation on dev,
    which is returned with the metrics on test and the predicted scores; the fourth check without improvement, or 1,050
    passes, ends the training.
    """
    inputs = with_constant(features, device)
    targets = torch.from_numpy(score_bins(scores)).to(inputs)

    def correlation(logits: Tensor, rows: np.ndarray) -> np.ndarray:
        gold = scores[rows]
        return np.array([pearson(predicted, gold) for predicted in _expected(logits).T])

    (trained,) = train_classifiers(
        inputs,
        features.shape[1],
        targets,
        [Group(train, dev, (0.0,))],
        correlation,
        schedule=RELATEDNESS,
        seed=seed,
        slope=squared_error_slope,
    )

    predicted = _expected(logits_of(trained.weights, inputs[test]))[:, 0]
    gold = scores[test]
    metrics = {
        "pearson": float(pearson(predicted, gold)),
        "spearman": float(spearman(predicted, gold)),
        "mse": float(((predicted - gold) ** 2).mean()),
    }
    return float(trained.scores[0]), metrics, predicted


def _expected(logits: Tensor) -> np.ndarray:
    """Mean score of each row under each classifier, `(rows, classifiers)`, float64."""
    return logits.softmax(2).cpu().numpy() @ SCORES.astype(np.float64)
