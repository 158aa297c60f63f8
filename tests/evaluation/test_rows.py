"""Rows and pairs of sentences: columns, cosines."""

from __future__ import annotations

import numpy as np
from datasets import Dataset
from scipy.spatial.distance import cosine

from hf_xlsr.evaluation.pairs import pair_cosines
from hf_xlsr.evaluation.rows import read_columns


def test_columns_in_the_order_asked_for():
    rows = [{"label": 1, "b": "B", "a": "A", "other": None}, {"label": None, "b": "", "a": "A"}]
    found = read_columns(iter(rows), texts=["a", "b"], values=["label"], name="rows")
    assert found == [["A", "A"], ["B", ""], [1, None]]
    data = Dataset.from_dict({"text": ["a", "b"], "label": [3, 1]})
    assert read_columns(data, texts=["text"], values=["label"], name="train") == [["a", "b"], [3, 1]]


def test_cosines():
    u, v = np.random.default_rng(0).normal(size=(2, 300, 7)).astype(np.float32)
    np.testing.assert_allclose(pair_cosines(u, v), [1 - cosine(*pair) for pair in zip(u, v, strict=True)], atol=1e-6)
    assert set(pair_cosines(u, u).tolist()) == {1.0}
    assert set(pair_cosines(u, -u).tolist()) == {-1.0}
    assert pair_cosines(u[:2], np.zeros((2, 7))).tolist() == [0.0, 0.0]
