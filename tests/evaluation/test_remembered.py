"""The remembering encoder: what reaches the encoder, and that nothing changes in what comes back."""

from __future__ import annotations

from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from hf_xlsr.evaluation.encoding import embed
from hf_xlsr.evaluation.remembered import RememberedEncoder


class Recorder:
    routes = ("en", "fr")

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], dict[str, Any]]] = []

    def encode(self, texts: list[str], **options: Any) -> np.ndarray:
        self.calls.append((texts, options))
        shift = {"en": 1.0, "fr": 2.0}[options["task"]]
        return np.array([[len(text), shift] for text in texts]) / (2 if options["normalize_embeddings"] else 1)


def test_each_text_is_encoded_once_for_each_route():
    inner = Recorder()
    encoder = RememberedEncoder(inner)
    first = embed(encoder, ["a", "bb"], language="en", normalize=False)
    np.testing.assert_array_equal(embed(encoder, ["bb", "a"], language="en", normalize=False), first[::-1])
    assert embed(encoder, ["bb"], language="fr", normalize=False).tolist() == [[2.0, 2.0]]
    assert embed(encoder, ["bb"], language="fr", batch_size=3).shape == (1, 2)
    assert [(texts, options["task"]) for texts, options in inner.calls] == [
        (["a", "bb"], "en"),
        (["bb"], "fr"),
        (["bb"], "fr"),
    ]
    assert inner.calls[2][1]["batch_size"] == 3 and inner.calls[2][1]["normalize_embeddings"]
    encoder.forget()
    embed(encoder, ["bb"], language="fr")
    assert len(inner.calls) == 4


def test_vectors_are_the_encoders_own(tiny_export: str):
    stock = SentenceTransformer(tiny_export, device="cpu")
    texts = ["one two three", "red house", "one two three"]
    np.testing.assert_allclose(embed(RememberedEncoder(stock), texts), embed(stock, texts), atol=1e-6)
