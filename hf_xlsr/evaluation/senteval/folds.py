"""SentEval's ways to test: nested folds, folds of the training rows, a fixed dev split, and predicted scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from hf_xlsr.evaluation.outcomes import pearson, spearman
from hf_xlsr.evaluation.senteval.classifier import (
    Group,
    Schedule,
    Score,
    TrainedGroup,
    accuracy_score,
    logits_of,
    train_classifiers,
    with_constant,
)

WEIGHT_DECAYS = (1e-5, 1e-4, 1e-3, 1e-2)
NESTED_SEED = 1111  # of the folds of nested cross-validation; the seed of the classifiers does not change them
SCORES = np.arange(1, 6)
SCHEDULE = Schedule(passes_per_check=50, tenacity=3, max_passes=1000)
HELD_OUT = 0.05  # of the training rows, to choose the check on after the weight decay


class Outcome(NamedTuple):
    """Accuracies of the chosen weight decay on dev rows and on test rows, and the label number of each test row."""

    dev: float
    test: float
    predicted: np.ndarray


class Classification:
    """Labelled vectors and SentEval's ways to train and test classifiers on them.

    The rows must be in SentEval's order. The weight decay with the highest mean dev accuracy is chosen, in per cent and
    rounded to two decimals; of equal ones the smallest. `seed` is that of the classifiers, and of the folds of
    `train_folds`.
    """

    def __init__(
        self,
        vectors: np.ndarray,
        labels: np.ndarray,
        *,
        schedule: Schedule | None = None,
        folds: int = 10,
        seed: int = 1111,
        device: torch.device | str = "cpu",
    ) -> None:
        place = torch.device(device)
        self.labels, self.width = np.asarray(labels), vectors.shape[1]
        self.schedule, self.folds, self.seed = schedule or Schedule(), folds, seed
        self.features = with_constant(vectors, place)
        self.label_numbers = torch.from_numpy(self.labels).to(place)
        self.targets = F.one_hot(self.label_numbers).to(self.features.dtype)

    def nested(self, rows: np.ndarray) -> Outcome:
        """Tests every row once, by a classifier whose weight decay was chosen in folds of the other rows.

        `dev` and `test` are means over the outer folds.
        """
        outer = self._split(rows, NESTED_SEED)
        inner = [fold for train, _ in outer for fold in self._split(train, NESTED_SEED)]
        trained = self._train([Group(train, dev, WEIGHT_DECAYS) for train, dev in inner])
        scores = np.array([one.scores for one in trained]).reshape(len(outer), self.folds, -1)
        chosen = [best_decay(accuracies) for accuracies in scores]
        final = self._train([self._all_of(train, decay) for (train, _), (decay, _) in zip(outer, chosen, strict=True)])
        predicted = np.empty_like(self.labels)
        for (_, test), one in zip(outer, final, strict=True):
            predicted[test] = self._predict(one.weights[0], test)
        tests = [float((predicted[test] == self.labels[test]).mean()) for _, test in outer]
        return Outcome(float(np.mean([dev for _, dev in chosen])), float(np.mean(tests)), predicted[rows])

    def train_folds(self, train: np.ndarray, test: np.ndarray) -> Outcome:
        """Chooses the weight decay in folds of the training rows."""
        trained = self._train([Group(*fold, WEIGHT_DECAYS) for fold in self._split(train, self.seed)])
        decay, dev = best_decay(np.array([one.scores for one in trained]))
        (final,) = self._train([self._all_of(train, decay)])
        return self._outcome(dev, final.weights[0], test)

    def fixed_dev(self, train: np.ndarray, dev: np.ndarray, test: np.ndarray) -> Outcome:
        """Chooses the weight decay and the check on dev rows."""
        (trained,) = self._train([Group(train, dev, WEIGHT_DECAYS)])
        decay, accuracy = best_decay(trained.scores[None])
        # SentEval trains the chosen classifier again, from the same seed and with the same result.
        return self._outcome(accuracy, trained.weights[WEIGHT_DECAYS.index(decay)], test)

    def _split(self, rows: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
        folds = StratifiedKFold(self.folds, shuffle=True, random_state=seed)
        return [(rows[train], rows[rest]) for train, rest in folds.split(rows, self.labels[rows])]

    def _all_of(self, train: np.ndarray, decay: float) -> Group:
        """A classifier on the training rows without a few, drawn first, that choose the check."""
        random = np.random.RandomState(self.seed)
        order = random.permutation(len(train))
        held_out = max(1, int(HELD_OUT * len(train)))  # SentEval fails on fewer than 20 rows
        return Group(train[order[held_out:]], train[order[:held_out]], (decay,), random)

    def _train(self, groups: Sequence[Group]) -> list[TrainedGroup]:
        score = accuracy_score(self.label_numbers)
        return train_classifiers(
            self.features, self.width, self.targets, groups, score, schedule=self.schedule, seed=self.seed
        )

    def _predict(self, weights: Tensor, rows: np.ndarray) -> np.ndarray:
        features = self.features[torch.from_numpy(rows).to(self.features.device)]
        return logits_of(weights[None], features)[:, 0].argmax(1).cpu().numpy()

    def _outcome(self, dev: float, weights: Tensor, test: np.ndarray) -> Outcome:
        predicted = self._predict(weights, test)
        return Outcome(dev, float((predicted == self.labels[test]).mean()), predicted)


def best_decay(accuracies: np.ndarray) -> tuple[float, float]:
    means = accuracies.mean(axis=0)
    best = int(np.argmax([round(100 * mean, 2) for mean in means]))
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
    return np.clip(1 - np.abs(scores[:, None] - SCORES), 0, None)


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
) -> tuple[float, dict[str, float]]:
    """Trains a predictor of pair scores from 0 to 5: the mean of the scores 1 to 5 under the predicted shares.

    Adam, batches of 64, no weight decay. A check every 50 passes keeps the best weights by Pearson's correlation on dev,
    which is returned with the metrics on test; the fourth check without improvement, or 1,050 passes, ends the training.
    """
    inputs = with_constant(features, torch.device(device))
    targets = torch.from_numpy(score_bins(scores)).to(inputs)
    (trained,) = train_classifiers(
        inputs,
        features.shape[1],
        targets,
        [Group(train, dev, (0.0,))],
        _pearson_score(scores),
        schedule=SCHEDULE,
        seed=seed,
        slope=squared_error_slope,
    )
    predicted = _expected(logits_of(trained.weights, inputs[torch.from_numpy(test).to(inputs.device)]))[:, 0]
    gold = scores[test]
    metrics = {"pearson": float(pearson(predicted, gold)), "spearman": float(spearman(predicted, gold))}
    return float(trained.scores[0]), {**metrics, "mse": float(((predicted - gold) ** 2).mean())}


def _expected(logits: Tensor) -> np.ndarray:
    """Mean score of each row under each classifier, `(rows, classifiers)`, float64."""
    return logits.softmax(2).cpu().numpy() @ SCORES.astype(np.float64)


def _pearson_score(scores: np.ndarray) -> Score:
    def score(logits: Tensor, rows: Tensor) -> np.ndarray:
        gold = scores[rows.cpu().numpy()]
        return np.array([pearson(predicted, gold) for predicted in _expected(logits).T])

    return score
