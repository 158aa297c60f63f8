from __future__ import annotations

import numpy as np
import pytest
from bitext_helpers import TableEncoder, cosines, noisy

from hf_xlsr.evaluation.protocols.tatoeba_laser import tatoeba_laser
from hf_xlsr.evaluation.protocols.xsim import xsim

LANGUAGES = ("en", "de")


def naive(similarities: np.ndarray, k: int, margin: str) -> float:
    """One source and one neighbour at a time, in float64."""
    forward = np.sort(similarities, axis=1)[:, ::-1][:, :k].mean(axis=1)
    backward = np.sort(similarities, axis=0)[::-1][:k].mean(axis=0)
    wrong = 0
    for i, row in enumerate(similarities):
        best, best_score = -1, -np.inf
        for j in np.argsort(-row, kind="stable")[:k]:
            average = (forward[i] + backward[j]) / 2
            score = {"ratio": row[j] / average, "distance": row[j] - average, "absolute": row[j]}[margin]
            if score > best_score:
                best, best_score = j, score
        wrong += best != i
    return wrong / len(similarities)


def test_hand_example():
    # Two sources, k 1. Both lie nearest to A, so A is the only neighbour of either: b is wrong whatever the margin.
    encoder = TableEncoder({"a": [1.0, 0.0], "b": [0.8, 0.6], "A": [0.96, 0.28], "B": [0.0, 1.0]})
    metrics = xsim(encoder, ["a", "b"], ["A", "B"], languages=LANGUAGES, name="toy", k=1)
    assert metrics == {"toy-xsim-k1-ratio/en-de/test/error": 0.5, "toy-xsim-k1-ratio/en-de/test/pairs": 2}
    # k 2. Cosines: a-A 0.96, a-B 0, b-A 0.936, b-B 0.6; means: a 0.48, b 0.768, A 0.948, B 0.3.
    # b-A gives 0.936 / 0.858 = 1.09 and b-B 0.6 / 0.534 = 1.12: the ratio finds what the cosine does not.
    metrics = xsim(encoder, ["a", "b"], ["A", "B"], languages=LANGUAGES, name="toy", k=2)
    assert metrics["toy-xsim-k2-ratio/en-de/test/error"] == 0.0
    # The distance: 0.936 - 0.858 = 0.078 for b-A, 0.6 - 0.534 = 0.066 for b-B.
    metrics = xsim(encoder, ["a", "b"], ["A", "B"], languages=LANGUAGES, name="toy", k=2, margin="distance")
    assert metrics["toy-xsim-k2-distance/en-de/test/error"] == 0.5


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
@pytest.mark.parametrize("k", [1, 3, 4, 16])
def test_equals_the_naive_twin(k: int, margin: str):
    encoder, sources, targets = noisy(220, noise=1.0, seed=k, width=24)
    expected = naive(cosines(encoder, sources, targets), k, margin)
    metrics = xsim(encoder, sources, targets, languages=LANGUAGES, name="toy", k=k, margin=margin)
    (error,) = (value for key, value in metrics.items() if key.endswith("/error"))
    assert 0.02 < expected < 0.9
    assert error == pytest.approx(expected)


def test_absolute_margin_equals_tatoeba():
    encoder, sources, targets = noisy(200, noise=1.3)
    metrics = xsim(encoder, sources, targets, languages=LANGUAGES, name="toy", margin="absolute")
    laser = tatoeba_laser(encoder, sources, targets, languages=LANGUAGES, name="toy")
    expected = laser["toy-tatoeba-laser/en-de/test/source_to_target_error"]
    assert 0 < expected < 1
    assert metrics["toy-xsim-absolute/en-de/test/error"] == expected


@pytest.mark.parametrize(
    ("options", "protocol"),
    [
        ({}, "xsim"),
        ({"k": 4, "margin": "ratio"}, "xsim"),
        ({"k": 3}, "xsim-k3-ratio"),
        ({"margin": "distance"}, "xsim-k4-distance"),
        ({"k": 3, "margin": "distance"}, "xsim-k3-distance"),
        ({"k": 9, "margin": "absolute"}, "xsim-absolute"),
    ],
)
def test_setting_in_the_key(options: dict, protocol: str):
    encoder, sources, targets = noisy(5, noise=0.0)
    metrics = xsim(encoder, sources, targets, languages=LANGUAGES, name="toy", split="dev", **options)
    assert list(metrics) == [f"toy-{protocol}/en-de/dev/error", f"toy-{protocol}/en-de/dev/pairs"]


def test_neighbourhoods_larger_than_the_data():
    encoder, sources, targets = noisy(3, noise=0.1)
    metrics = xsim(encoder, sources, targets, languages=LANGUAGES, name="toy", k=50)
    assert metrics["toy-xsim-k50-ratio/en-de/test/error"] == naive(cosines(encoder, sources, targets), 3, "ratio")
    one = xsim(encoder, sources[:1], targets[:1], languages=LANGUAGES, name="toy")
    assert one == {"toy-xsim/en-de/test/error": 0.0, "toy-xsim/en-de/test/pairs": 1}
