"""Rows and pairs of sentences: columns, cosines."""

from __future__ import annotations

import numpy as np
from datasets import Dataset
from scipy.spatial.distance import cosine

from hf_xlsr.evaluation.pairs import pair_cosines
from hf_xlsr.evaluation.rows import read_columns


def test_columns_of_an_iterator_in_the_order_asked_for():
    rows = [
        {"label": 1, "b": "B", "a": "A", "other": None},
        {"label": None, "b": "", "a": "A"},
    ]
    columns = read_columns(iter(rows), texts=["a", "b"], values=["label"], name="rows")
    assert columns == [["A", "A"], ["B", ""], [1, None]]


def test_columns_of_a_dataset():
    data = Dataset.from_dict({"text": ["a", "b"], "label": [3, 1]})
    columns = read_columns(data, texts=["text"], values=["label"], name="train")
    assert columns == [["a", "b"], [3, 1]]


def test_cosines():
    u, v = np.random.default_rng(0).normal(size=(2, 300, 7)).astype(np.float32)
    expected = 1 - np.array(list(map(cosine, u, v)))
    np.testing.assert_allclose(pair_cosines(u, v), expected, atol=1e-6)


def test_cosines_at_the_ends_are_exact():
    u = np.random.default_rng(0).normal(size=(300, 7)).astype(np.float32)
    assert (pair_cosines(u, u) == 1).all()
    assert (pair_cosines(u, -u) == -1).all()
    assert (pair_cosines(u, np.zeros_like(u)) == 0).all()
