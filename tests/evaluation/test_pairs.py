"""Pairs of sentences: languages of the sides, routes, cosines, features."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.spatial.distance import cosine

from hf_xlsr.evaluation.pairs import embed_pairs, pair_cosines


class RecordingEncoder:
    def __init__(self, routes: tuple[str, ...] = ()):
        self.routes = routes
        self.calls: list[tuple[list[str], str | None]] = []

    def encode(self, texts: list[str], **kwargs: Any) -> np.ndarray:
        self.calls.append((texts, kwargs.get("task")))
        return np.array([[len(text), kwargs.get("task") == "es", 1] for text in texts], np.float32)


def test_one_language_is_encoded_at_once():
    encoder = RecordingEncoder()
    u, v = embed_pairs(encoder, ["a", "bb"], ["bb", "ccc"], "en", normalize=False, prompt="q ")
    assert encoder.calls == [(["q a", "q bb", "q ccc"], None)]
    assert (u[:, 0].tolist(), v[:, 0].tolist()) == ([3, 4], [4, 5])


def test_routes_of_two_languages():
    encoder = RecordingEncoder(("en", "es"))
    u, v = embed_pairs(encoder, ["a", "b"], ["a", "b"], ("en", "es"), normalize=False)
    assert [task for _, task in encoder.calls] == ["en", "es"]
    assert (u[:, 1].tolist(), v[:, 1].tolist()) == ([0, 0], [1, 1])


def test_cosines():
    rng = np.random.default_rng(0)
    u, v = rng.normal(size=(2, 300, 7)).astype(np.float32)
    np.testing.assert_allclose(pair_cosines(u, v), [1 - cosine(*pair) for pair in zip(u, v, strict=True)], atol=1e-6)
    assert set(pair_cosines(u, u).tolist()) == {1.0}
    assert set(pair_cosines(u, -u).tolist()) == {-1.0}
    assert pair_cosines(u[:2], np.zeros((2, 7))).tolist() == [0.0, 0.0]
