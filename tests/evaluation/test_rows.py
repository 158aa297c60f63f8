"""Rows and pairs of sentences: columns, labels, languages of the sides, cosines."""

from __future__ import annotations

import numpy as np
from bitext_helpers import TableEncoder
from datasets import Dataset
from scipy.spatial.distance import cosine

from hf_xlsr.evaluation.pairs import embed_pairs, pair_cosines
from hf_xlsr.evaluation.rows import number_labels, read_columns


def test_columns_in_the_order_asked_for():
    rows = [{"label": 1, "b": "B", "a": "A", "other": None}, {"label": None, "b": "", "a": "A"}]
    found = read_columns(iter(rows), texts=["a", "b"], values=["label"], name="rows")
    assert found == [["A", "A"], ["B", ""], [1, None]]
    data = Dataset.from_dict({"text": ["a", "b"], "label": [3, 1]})
    assert read_columns(data, texts=["text"], values=["label"], name="train") == [["a", "b"], [3, 1]]


def test_labels_are_numbered_in_sorted_order():
    assert number_labels(["b", "a", "b", "c"], "train") == {"a": 0, "b": 1, "c": 2}
    assert number_labels(np.array([7, -1, 7]), "train") == {-1: 0, 7: 1}
    assert number_labels(["x", 3, 1], "train") == {1: 0, 3: 1, "x": 2}


def test_sides_of_pairs():
    encoder = TableEncoder({text: [len(text), 1] for text in ("q a", "q bb", "q ccc")})
    u, v = embed_pairs(encoder, (["a", "bb"], ["bb", "ccc"]), "en", normalize=False, prompt="q ")
    assert encoder.texts == ["q a", "q bb", "q ccc"]  # in one language each text is encoded once
    assert (u[:, 0].tolist(), v[:, 0].tolist()) == ([3, 4], [4, 5])
    encoder.routes, encoder.tasks = ("en", "es"), []
    embed_pairs(encoder, [["q a", "q bb"]] * 2, ("en", "es"))
    assert encoder.tasks == ["en", "es"]


def test_cosines():
    u, v = np.random.default_rng(0).normal(size=(2, 300, 7)).astype(np.float32)
    np.testing.assert_allclose(pair_cosines(u, v), [1 - cosine(*pair) for pair in zip(u, v, strict=True)], atol=1e-6)
    assert set(pair_cosines(u, u).tolist()) == {1.0}
    assert set(pair_cosines(u, -u).tolist()) == {-1.0}
    assert pair_cosines(u[:2], np.zeros((2, 7))).tolist() == [0.0, 0.0]
