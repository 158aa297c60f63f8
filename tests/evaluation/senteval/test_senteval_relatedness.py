from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from torch import nn

from hf_xlsr.evaluation.senteval import folds as senteval_relatedness
from hf_xlsr.evaluation.senteval.classifier import Schedule
from hf_xlsr.evaluation.senteval.folds import relatedness, score_bins


def pairs(rows: int, width: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, width))
    scores = 3 + features @ random.normal(size=width) / width**0.5 + noise * random.normal(size=rows)
    return features, np.clip(scores, 0, 5)


def relatedness_alone(
    features: np.ndarray, scores: np.ndarray, parts: list[np.ndarray], schedule: Schedule, seed: int
) -> tuple[float, np.ndarray]:
    """The toolkit's training by autograd: Pearson's correlation on dev, and the predictions on test."""
    train, dev, test = parts
    np.random.seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(features.shape[1], 5).double(), nn.Softmax(dim=1))
    optimizer = torch.optim.Adam(model.parameters())
    inputs, targets = torch.from_numpy(features), torch.from_numpy(score_bins(scores))

    def predict(rows: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model(inputs[rows]).numpy() @ np.arange(1, 6)

    best, best_prediction, misses, passes = -1.0, np.zeros(0), 0, 0
    while passes <= schedule.max_passes:
        for _ in range(schedule.passes_per_check):
            for rows in torch.from_numpy(train[np.random.permutation(len(train))]).split(64):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(inputs[rows]), targets[rows]).backward()
                optimizer.step()
        passes += schedule.passes_per_check
        correlation = pearsonr(predict(dev), scores[dev]).statistic
        if correlation > best:
            best, best_prediction = correlation, predict(test)
        else:
            misses += 1
            if misses > schedule.tenacity:
                break
    return best, best_prediction


def test_relatedness_equals_the_toolkit(monkeypatch: pytest.MonkeyPatch):
    features, scores = pairs(260, 20, noise=0.5)
    schedule = Schedule(passes_per_check=6, tenacity=3, max_passes=200)
    monkeypatch.setattr(senteval_relatedness, "SCHEDULE", schedule)
    order = np.random.default_rng(1).permutation(260)
    parts = [order[:150], order[150:200], order[200:]]
    dev, tested = relatedness(features, scores, *parts, seed=3)
    expected_dev, predicted = relatedness_alone(features, scores, parts, schedule, 3)
    gold = scores[parts[2]]
    assert dev == pytest.approx(expected_dev, abs=1e-8)
    assert tested == pytest.approx(
        {
            "pearson": pearsonr(predicted, gold).statistic,
            "spearman": spearmanr(predicted, gold).statistic,
            "mse": ((predicted - gold) ** 2).mean(),
        },
        abs=1e-8,
    )
    assert 0.5 < tested["pearson"] < 0.99
