"""SentEval's supervised relatedness: a linear layer predicts the probabilities of five scores."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hf_xlsr.evaluation.outcomes import pearson, spearman
from hf_xlsr.evaluation.senteval.classifier import Group, Schedule, Score, logits_of, train_classifiers, with_constant

SCORES = np.arange(1, 6)
SCHEDULE = Schedule(passes_per_check=50, tenacity=3, max_passes=1000)


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
