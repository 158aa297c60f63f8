from __future__ import annotations

import numpy as np
from datasets import Dataset

from hf_xlsr.evaluation.rows import number_labels, read_columns


def test_columns_in_the_order_asked_for():
    rows = [{"label": 1, "b": "B", "a": "A", "other": None}, {"label": None, "b": "", "a": "A"}]
    assert read_columns(iter(rows), texts=["a", "b"], values=["label"], name="rows") == [
        ["A", "A"],
        ["B", ""],
        [1, None],
    ]
    data = Dataset.from_dict({"text": ["a", "b"], "label": [3, 1]})
    assert read_columns(data, texts=["text"], values=["label"], name="train") == [["a", "b"], [3, 1]]


def test_labels_are_numbered_in_sorted_order():
    assert number_labels(["b", "a", "b", "c"], "train") == {"a": 0, "b": 1, "c": 2}
    assert number_labels(np.array([7, -1, 7]), "train") == {-1: 0, 7: 1}
    assert number_labels(["x", 3, 1], "train") == {1: 0, 3: 1, "x": 2}
