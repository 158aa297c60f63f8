"""Pairs of sentences: languages of the sides, routes, cosines, features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cosine

from hf_xlsr.evaluation.pairs import embed_pairs, language_name, pair_cosines, pair_features, sides_of


class RecordingEncoder:
    def __init__(self, routes: tuple[str, ...] = ()):
        self.routes = routes
        self.calls: list[tuple[list[str], str | None]] = []

    def encode(self, texts: list[str], **kwargs: Any) -> np.ndarray:
        self.calls.append((texts, kwargs.get("task")))
        return np.array([[len(text), kwargs.get("task") == "es", 1] for text in texts], np.float32)


@pytest.mark.parametrize(
    ("language", "sides", "name"),
    [
        ("en", ("en", "en"), "en"),
        ("en-es", ("en", "es"), "en-es"),
        ("eng-deu", ("eng", "deu"), "eng-deu"),
        ("pt-BR", ("pt-BR", "pt-BR"), "pt-BR"),
        ("zh-Hant", ("zh-Hant", "zh-Hant"), "zh-Hant"),
        ("deu_Latn", ("deu_Latn", "deu_Latn"), "deu_Latn"),
        (("pt-BR", "en"), ("pt-BR", "en"), "pt-BR-en"),
        (("en", "en"), ("en", "en"), "en"),
    ],
)
def test_languages_of_the_sides(language: Any, sides: tuple[str, str], name: str):
    assert sides_of(language) == sides
    assert language_name(language) == name


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


def test_features():
    assert pair_features(np.array([[1.0, -2.0]]), np.array([[4.0, 3.0]])).tolist() == [[1, -2, 4, 3, 3, 5, 4, -6]]
