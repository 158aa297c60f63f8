"""Reading rows: what comes out, and every sentence about what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from datasets import Dataset

from hf_xlsr.evaluation.rows import number_labels, read_columns, read_labelled
from hf_xlsr.utils.errors import XlsrError


def test_columns_come_out_in_the_order_asked_for():
    rows = [{"label": 1, "b": "B", "a": "A", "other": None}, {"label": None, "b": "", "a": "A"}]
    assert read_columns(iter(rows), texts=["a", "b"], values=["label"], name="rows") == [
        ["A", "A"],
        ["B", ""],
        [1, None],
    ]


def test_a_data_set_is_rows():
    data = Dataset.from_dict({"text": ["a", "b"], "label": [3, 1]})
    assert read_columns(data, texts=["text"], values=["label"], name="train") == [["a", "b"], [3, 1]]


def test_labels_are_numbered_in_sorted_order_whatever_their_types():
    assert number_labels(["b", "a", "b", "c"], "train") == {"a": 0, "b": 1, "c": 2}
    assert number_labels(np.array([7, -1, 7]), "train") == {-1: 0, 7: 1}
    assert number_labels(["x", 3, 1], "train") == {1: 0, 3: 1, "x": 2}


def test_tests_take_the_numbers_of_train():
    train = [{"text": text, "label": label} for text, label in (("1", "x"), ("2", "y"), ("3", "z"))]
    learn, choose, tests = read_labelled(train, train[1:], {"fr": reversed(train)}, texts=["text"])
    assert (learn.sides, choose.sides, tests["fr"].sides) == ((["1", "2", "3"],), (["2", "3"],), (["3", "2", "1"],))
    assert [rows.labels.tolist() for rows in (learn, choose, tests["fr"])] == [[0, 1, 2], [1, 2], [2, 1, 0]]
    assert tests["fr"].labels.dtype == np.int64


GOOD = [{"text": "a", "label": 0}, {"text": "b", "label": 1}]


def labelled(**changes: Any) -> Any:
    arguments: dict[str, Any] = {"train": GOOD, "dev": GOOD, "tests": {"fr": GOOD}, **changes}
    return read_labelled(arguments["train"], arguments["dev"], arguments["tests"], texts=["text"])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: labelled(train=[]), "train has no rows; give at least one."),
        (lambda: labelled(train=[{"text": "a"}]), "row 0 of train has no column 'label'; each row needs text, label."),
        (lambda: labelled(dev=[GOOD[0], {"label": 1}]), "row 1 of dev has no column 'text'"),
        (lambda: labelled(dev=[{"text": None, "label": 1}]), "row 0 of dev has None as its text; give a string"),
        (lambda: labelled(dev=[{"text": float("nan"), "label": 1}]), "row 0 of dev has nan as its text"),
        (lambda: labelled(train={"text": ["a"], "label": [1]}), "row 0 of train is 'text'; give mappings with"),
        (lambda: labelled(train=GOOD[:1]), "train has one label only, 0; a classifier needs two or more."),
        (lambda: labelled(train=[*GOOD, {"text": "c", "label": None}]), "row 2 of train has None as its label"),
        (lambda: labelled(train=[{"text": "c", "label": float("nan")}, *GOOD]), "row 0 of train has nan as its label"),
        (lambda: labelled(train=[{"text": "c", "label": [1]}, *GOOD]), "row 0 of train has [1] as its label"),
        (
            lambda: labelled(tests={"fr": GOOD, "de": [*GOOD, {"text": "c", "label": "1"}]}),
            "row 2 of tests['de'] has label '1', which train does not have; its labels are 0, 1.",
        ),
        (lambda: labelled(dev=[{"text": "c", "label": [1]}]), "row 0 of dev has label [1], which train does not have"),
        (lambda: labelled(tests=[GOOD]), "give a mapping from language to rows, with at least one entry."),
        (lambda: labelled(tests={}), "tests is {}; give a mapping from language to rows"),
    ],
)
def test_mistakes_are_named(call: Callable[[], Any], says: str):
    with pytest.raises(XlsrError, match=re.escape(says)):
        call()
