from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from bitext_helpers import cosines, noisy

from hf_xlsr.evaluation import xsr, xsr_both_directions


@pytest.mark.parametrize("noise", [0.0, 0.8, 2.0])
def test_equals_the_naive_twin(noise: float):
    encoder, sources, targets = noisy(380, noise)
    queries = sources[:80]
    golds = targets[:80]
    pool = targets[80:]

    metrics = xsr(encoder, queries, golds, pool, name="toy")

    similarities = cosines(encoder, queries, targets)
    gold_similarities = np.diagonal(similarities)
    ranks = (similarities > gold_similarities[:, None]).sum(axis=1)
    for k in (1, 5, 10):
        assert metrics[f"toy-xsr/en-fr/test/precision@{k}"] == pytest.approx(np.mean(ranks < k))
    if noise == 0:
        assert metrics["toy-xsr/en-fr/test/precision@1"] == 1

    # Neither order nor copies of the pool matter.
    shuffled = [*targets, *pool[:50]]
    random.Random(2).shuffle(shuffled)
    assert xsr(encoder, queries, golds, shuffled, name="toy") == metrics


def test_both_directions():
    encoder, sources, targets = noisy(140, 1.0)
    options: dict[str, Any] = {"name": "toy", "split": "dev"}
    queries = sources[:40]
    golds = targets[:40]
    source_pool = sources[40:70]
    target_pool = targets[40:]

    metrics = xsr_both_directions(encoder, queries, golds, source_pool, target_pool, languages=("en", "de"), **options)

    forward = xsr(encoder, queries, golds, target_pool, languages=("en", "de"), **options)
    backward = xsr(encoder, golds, queries, source_pool, languages=("de", "en"), **options)
    assert metrics == forward | backward
    assert len(metrics) == 10
