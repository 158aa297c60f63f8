"""The control that is no training: whitening of an encoder's embeddings."""

from __future__ import annotations

import numpy as np
from conftest import make_pairs
from sentence_transformers import SentenceTransformer

from benchmarks.papers.controls import whitened


def test_whitened_embeddings_are_those_of_a_sphere(tiny_export: str) -> None:
    sentences = list(dict.fromkeys(row["source"] for row in make_pairs(200)))
    model = whitened(tiny_export, sentences)
    white = SentenceTransformer(modules=list(model)[:-1]).encode(sentences)
    raw = SentenceTransformer(tiny_export).encode(sentences)
    assert np.abs(white.mean(axis=0)).max() < 0.3
    assert spread_of_directions(raw) > 3
    assert spread_of_directions(white) < 1.5
    np.testing.assert_allclose(np.linalg.norm(model.encode(sentences), axis=1), 1.0, atol=1e-4)


def spread_of_directions(vectors: np.ndarray) -> float:
    """The largest variance along a principal direction over the median one."""
    variances = np.linalg.eigvalsh(np.cov(vectors.T))
    return float(variances[-1] / np.median(variances))
