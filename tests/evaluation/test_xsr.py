from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hf_xlsr.evaluation import xsr, xsr_both_directions

WORDS = 60


class WordEncoder:
    """A sentence is the sum of its words' random vectors; `w3` and `v3` are translations, close to each other."""

    def __init__(self, noise: float = 0.3):
        rng = np.random.default_rng(0)
        vectors = rng.normal(size=(WORDS, 16))
        moved = vectors + noise * rng.normal(size=vectors.shape)
        self.table = {f"w{i}": vectors[i] for i in range(WORDS)} | {f"v{i}": moved[i] for i in range(WORDS)}

    def encode(self, texts: list[str], **kwargs: Any) -> np.ndarray:
        return np.array([sum(self.table[word] for word in text.split()) for text in texts])


def corpus(pairs: int, distractors: int) -> tuple[list[str], list[str], list[str]]:
    rng = np.random.default_rng(1)
    sentences = rng.integers(0, WORDS, size=(pairs + distractors, 3))
    queries = [" ".join(f"w{i}" for i in sentence) for sentence in sentences[:pairs]]
    translations = [" ".join(f"v{i}" for i in sentence) for sentence in sentences]
    return queries, translations[:pairs], translations[pairs:]


def naive(encoder: Any, queries: list[str], golds: list[str], pool: list[str], k: int) -> float:
    candidates = sorted(set(pool) | set(golds))
    y = encoder.encode(candidates)
    y = y / np.linalg.norm(y, axis=1, keepdims=True)
    hits = 0
    for query, gold in zip(queries, golds, strict=True):
        scores = y @ encoder.encode([query])[0]
        better = sum(score > scores[candidates.index(gold)] for score in scores)
        hits += better < k
    return hits / len(queries)


def test_hand_example():
    class Angles:
        def encode(self, texts: list[str], **kwargs: Any) -> np.ndarray:
            degrees = np.deg2rad([float(text.split(":")[1]) for text in texts])
            return np.stack([np.cos(degrees), np.sin(degrees)], axis=1)

    pool = [f"x:{degrees}" for degrees in range(2, 14, 2)]  # six distractors at 2 to 12 degrees
    metrics = xsr(Angles(), ["q:0", "p:0", "r:0", "s:50"], ["g:1", "g:5", "g:11", "g:50"], pool, name="toy")
    # Beside the other golds: 1 is first; 5 is fourth (1, 2, 4, 5); 11 is eighth; 50 is first for its query.
    assert metrics == {
        "toy-xsr/en-fr/test/precision@1": 0.5,
        "toy-xsr/en-fr/test/precision@5": 0.75,
        "toy-xsr/en-fr/test/precision@10": 1.0,
        "toy-xsr/en-fr/test/pool_size": 10,
        "toy-xsr/en-fr/test/queries": 4,
    }


@pytest.mark.parametrize("noise", [0.0, 0.8, 2.0])
def test_equals_the_naive_twin(noise: float):
    encoder = WordEncoder(noise)
    queries, golds, pool = corpus(pairs=80, distractors=300)
    metrics = xsr(encoder, queries, golds, pool, name="toy")
    for k in (1, 5, 10):
        assert metrics[f"toy-xsr/en-fr/test/precision@{k}"] == pytest.approx(naive(encoder, queries, golds, pool, k))
    if noise == 0:
        assert metrics["toy-xsr/en-fr/test/precision@1"] == 1.0


def test_order_and_copies_of_the_pool():
    encoder = WordEncoder(noise=1.0)
    queries, golds, pool = corpus(pairs=60, distractors=200)
    metrics = xsr(encoder, queries, golds, pool, name="toy")
    assert 0 < metrics["toy-xsr/en-fr/test/precision@1"] < 1
    rng = np.random.default_rng(2)
    everything = [*pool, *golds, *pool[:50]]
    shuffled = [everything[i] for i in rng.permutation(len(everything))]
    assert xsr(encoder, queries, golds, shuffled, name="toy") == metrics


def test_both_directions():
    encoder = WordEncoder(noise=1.0)
    sources, targets, pool = corpus(pairs=40, distractors=100)
    source_pool = [text.replace("v", "w") for text in pool[:30]]
    languages = ("en", "de")
    metrics = xsr_both_directions(encoder, sources, targets, source_pool, pool, name="toy", languages=languages)
    forward = xsr(encoder, sources, targets, pool, name="toy", languages=languages)
    backward = xsr(encoder, targets, sources, source_pool, name="toy", languages=("de", "en"))
    assert metrics == forward | backward and len(metrics) == 10
