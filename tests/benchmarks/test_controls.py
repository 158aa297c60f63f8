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
    # A random encoder has directions of nearly no variance, in which rounding is amplified.
    assert distance_from_sphere(raw) > 0.9
    assert distance_from_sphere(white) < 0.2
    np.testing.assert_allclose(np.linalg.norm(model.encode(sentences), axis=1), 1.0, atol=1e-4)


def distance_from_sphere(vectors: np.ndarray) -> float:
    """How far the variance along a principal direction typically is from 1."""
    variances = np.linalg.eigvalsh(np.cov(vectors.T))
    return float(np.median(np.abs(variances - 1)))
