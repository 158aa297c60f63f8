"""The cache of embeddings: calls of the encoder, and equal embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from hf_xlsr.encoders.cache import CachedEncoder
from hf_xlsr.encoders.encoding import embed


class Recorder:
    routes = ("en", "fr")

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], dict[str, Any]]] = []

    def encode(self, texts: list[str], **options: Any) -> np.ndarray:
        self.calls.append((texts, options))
        shift = {"en": 1.0, "fr": 2.0}[options["task"]]
        return np.array([[len(text), shift] for text in texts])


def test_each_text_is_encoded_once_for_each_route():
    inner = Recorder()
    encoder = CachedEncoder(inner)
    first = embed(encoder, ["a", "bb"], language="en", normalize=False)
    np.testing.assert_array_equal(embed(encoder, ["bb", "a"], language="en", normalize=False), first[::-1])
    assert embed(encoder, ["bb"], language="fr", normalize=False, batch_size=3).tolist() == [[2.0, 2.0]]
    assert [(texts, options["task"]) for texts, options in inner.calls] == [(["a", "bb"], "en"), (["bb"], "fr")]
    assert inner.calls[1][1]["batch_size"] == 3


def test_normalised_embeddings_share_the_cache():
    inner = Recorder()
    encoder = CachedEncoder(inner)
    kept = embed(encoder, ["bb", "cccc"], language="fr", normalize=False)
    unit = encoder.encode(["bb", "cccc"], task="fr", normalize_embeddings=True)
    np.testing.assert_allclose(unit, [[2**-0.5, 2**-0.5], [4 / 20**0.5, 2 / 20**0.5]], rtol=1e-6)
    np.testing.assert_array_equal(embed(encoder, ["bb", "cccc"], language="fr", normalize=False), kept)
    assert len(inner.calls) == 1 and inner.calls[0][1]["normalize_embeddings"] is False


def test_embeddings_are_those_of_the_encoder(tiny_export: str):
    stock = SentenceTransformer(tiny_export, device="cpu")
    texts = ["one two three", "red house", "one two three"]
    np.testing.assert_allclose(embed(CachedEncoder(stock), texts), embed(stock, texts), atol=1e-6)
