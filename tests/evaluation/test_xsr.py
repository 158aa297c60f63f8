from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bitext_helpers import cosines, noisy

from hf_xlsr.evaluation import xsr, xsr_both_directions


@pytest.mark.parametrize("noise", [0.0, 0.8, 2.0])
def test_equals_the_naive_twin(noise: float):
    encoder, sources, targets = noisy(380, noise)
    queries, golds, pool = sources[:80], targets[:80], targets[80:]
    metrics = xsr(encoder, queries, golds, pool, name="toy")
    similarities = cosines(encoder, queries, targets)
    for k in (1, 5, 10):
        hits = sum(int((row > row[place]).sum()) < k for place, row in enumerate(similarities))
        assert metrics[f"toy-xsr/en-fr/test/precision@{k}"] == pytest.approx(hits / 80)
    assert noise or metrics["toy-xsr/en-fr/test/precision@1"] == 1.0
    # Neither order nor copies of the pool matter.
    everything = [*targets, *pool[:50]]
    shuffled = [everything[i] for i in np.random.default_rng(2).permutation(len(everything))]
    assert xsr(encoder, queries, golds, shuffled, name="toy") == metrics


def test_both_directions():
    encoder, sources, targets = noisy(140, 1.0)
    given: dict[str, Any] = {"name": "toy", "split": "dev"}
    parts = sources[:40], targets[:40], sources[40:70], targets[40:]
    metrics = xsr_both_directions(encoder, *parts, languages=("en", "de"), **given)
    forward = xsr(encoder, parts[0], parts[1], parts[3], languages=("en", "de"), **given)
    backward = xsr(encoder, parts[1], parts[0], parts[2], languages=("de", "en"), **given)
    assert metrics == forward | backward and len(metrics) == 10
