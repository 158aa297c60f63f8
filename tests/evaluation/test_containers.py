"""Every function of a protocol takes sentences and rows in any container, and names what is none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from hf_xlsr.evaluation import (
    BuccData,
    bucc,
    hide_pairs,
    language_bias,
    measure_rows,
    mining,
    nli,
    pair_classification,
    search,
    search_documents,
    senteval,
    sts,
    tatoeba,
    tatoeba_laser,
    tatoeba_mteb,
    tatoeba_xtreme,
    xsim,
    xsim_pp,
    xsr,
    xsr_both_directions,
    zero_shot,
)
from hf_xlsr.utils.errors import XlsrError

COUNT = 12
ENGLISH = [f"text {number}" for number in range(COUNT)]
FRENCH = [f"texte {number}" for number in range(COUNT)]
GERMAN = [f"Text {number}" for number in range(COUNT)]


class Numbers:
    """Vectors that depend on the number at the end of a text."""

    def encode(self, texts: list[str], **options: Any) -> np.ndarray:
        assert isinstance(texts, list)
        return np.stack([np.random.default_rng(len(text) + 100 * int(text[-1])).normal(size=6) for text in texts])


def rows(**columns: list[Any]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


BINARY = [0, 1] * (COUNT // 2)
SCORED = rows(sentence1=ENGLISH, sentence2=FRENCH, score=list(range(COUNT)))
LABELLED = rows(sentence1=ENGLISH, sentence2=FRENCH, label=BINARY)
TOPICS = rows(text=ENGLISH, label=BINARY)
FRENCH_TOPICS = rows(text=FRENCH, label=BINARY)
INFERENCES = rows(premise=ENGLISH, hypothesis=FRENCH, label=[0, 1, 2] * (COUNT // 3))
PAIRS = rows(source=ENGLISH, target=FRENCH)
GUARD = [{**row, "lang": "en"} for row in SCORED]

Call = Callable[[Callable[[Any], Any], Any], Any]
EN_FR: dict[str, Any] = {"languages": ("en", "fr"), "name": "x"}
HEAD: dict[str, Any] = {"train_language": "en", "name": "x", "head": "linear"}


def of_pairs(function: Callable[..., Any]) -> Call:
    return lambda wrap, encoder: function(encoder, wrap(ENGLISH), wrap(FRENCH), **EN_FR)


def pools(function: Callable[..., Any], *sides: list[str]) -> Call:
    return lambda wrap, encoder: function(encoder, *map(wrap, sides), **EN_FR)


# Functions of sentences: each is called with a function that makes a container.
OF_SENTENCES: dict[str, Call] = {
    **{
        function.__name__: of_pairs(function)
        for function in (tatoeba, tatoeba_laser, tatoeba_mteb, tatoeba_xtreme, xsim, xsim_pp, mining)
    },
    "xsr": pools(xsr, ENGLISH, FRENCH, GERMAN),
    "xsr_both_directions": pools(xsr_both_directions, ENGLISH, FRENCH, GERMAN, GERMAN),
    "language_bias": lambda wrap, encoder: language_bias(encoder, {"en": wrap(ENGLISH), "fr": wrap(FRENCH)}, name="x"),
    "search": lambda wrap, encoder: search(encoder, {"en": wrap(ENGLISH), "fr": wrap(FRENCH)}, name="x"),
}
OF_ROWS: dict[str, Call] = {
    "sts": lambda wrap, encoder: sts(encoder, {"STS12": wrap(SCORED)}),
    "sts of rows alone": lambda wrap, encoder: sts(encoder, wrap(SCORED)),
    "pair_classification": lambda wrap, encoder: pair_classification(
        encoder, wrap(LABELLED), tune=wrap(LABELLED), name="x"
    ),
    "zero_shot": lambda wrap, encoder: zero_shot(
        encoder, wrap(TOPICS), wrap(TOPICS), {"fr": wrap(FRENCH_TOPICS)}, **HEAD
    ),
    "nli": lambda wrap, encoder: nli(encoder, wrap(INFERENCES), wrap(INFERENCES), {"fr": wrap(INFERENCES)}, **HEAD),
    "senteval": lambda wrap, encoder: senteval(encoder, {"MR": wrap(TOPICS * 2)}, device="cpu"),
    "measure_rows": lambda wrap, encoder: measure_rows(encoder, wrap(GUARD), name="x"),
    "hide_pairs": lambda wrap, encoder: {"size": len(hide_pairs(wrap(PAIRS), share=0.5).texts)},
}
SENTENCE_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "iterator": iter,
    "array": np.array,
    "series": pd.Series,
    "column": lambda texts: Dataset.from_dict({"text": texts})["text"],
}
ROW_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "iterator": iter,
    "dataset": Dataset.from_list,
    "stream": lambda rows: Dataset.from_list(rows).to_iterable_dataset(),
    "frame": pd.DataFrame,
    "columns": lambda rows: {name: [row[name] for row in rows] for name in rows[0]},
    "arrow": lambda rows: Dataset.from_list(rows).data.table,
}
CALLS = {**OF_SENTENCES, **OF_ROWS}


def wrapped(call: str, wrap: Callable[[Any], Any]) -> dict[str, float]:
    return dict(CALLS[call](wrap, Numbers()))


@pytest.mark.parametrize("container", SENTENCE_CONTAINERS)
@pytest.mark.parametrize("call", OF_SENTENCES)
def test_sentences(call: str, container: str) -> None:
    assert wrapped(call, SENTENCE_CONTAINERS[container]) == wrapped(call, list)


@pytest.mark.parametrize("container", ROW_CONTAINERS)
@pytest.mark.parametrize("call", OF_ROWS)
def test_rows(call: str, container: str) -> None:
    assert wrapped(call, ROW_CONTAINERS[container]) == wrapped(call, list)


INVALID: dict[str, Callable[[Any], Any]] = {
    "a text": lambda values: "one text",
    "None": lambda values: None,
    "a number": lambda values: 5,
    "a missing item": lambda values: [*values[:-1], None],
}


@pytest.mark.parametrize("value", INVALID)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_container(call: str, value: str) -> None:
    with pytest.raises(XlsrError) as error:
        wrapped(call, INVALID[value])
    assert "`" in str(error.value)
    assert "\n" not in str(error.value)


NOT_BY_NAME: dict[str, tuple[Callable[..., Any], str]] = {
    "language_bias": (partial(language_bias, name="x"), "texts"),
    "search": (partial(search, name="x"), "texts"),
    "senteval": (senteval, "tasks"),
    "zero_shot": (lambda encoder, value: zero_shot(encoder, TOPICS, TOPICS, value, **HEAD), "tests"),
    "nli": (lambda encoder, value: nli(encoder, INFERENCES, INFERENCES, value, **HEAD), "tests"),
    "search_documents": (
        lambda encoder, value: search_documents(encoder, value, {"d": "a 1"}, {"q": {"d": 1}}, name="x"),
        "queries",
    ),
    "bucc": (
        lambda encoder, value: bucc(encoder, value, BuccData(["a"], ["b 1"], ["c"], ["d 1"], {("a", "c")}), **EN_FR),
        "tune",
    ),
}


@pytest.mark.parametrize("call", NOT_BY_NAME)
def test_rows_where_a_mapping_is_meant(call: str) -> None:
    function, name = NOT_BY_NAME[call]
    with pytest.raises(XlsrError, match=f"`{name}`"):
        function(Numbers(), [{"text": "a 1"}])


def test_texts_of_a_table() -> None:
    expected = language_bias(Numbers(), {"en": ENGLISH, "fr": FRENCH}, name="x")
    columns = {"en": ENGLISH, "fr": FRENCH}
    for table in (pd.DataFrame(columns), Dataset.from_dict(columns)):
        assert dict(language_bias(Numbers(), table, name="x")) == dict(expected)
