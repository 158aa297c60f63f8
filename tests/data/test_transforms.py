"""Datasets with a transform: applied anew at each access, and never confused with others in the cache."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, count
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from tokenizer_helpers import word_tokenizer

from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.raw_rows import class_names
from hf_xlsr.data.streaming import StreamBatches
from hf_xlsr.utils.errors import XlsrError

NUMBERS = [str(number) for number in range(200)]
TOKENIZER = word_tokenizer(["red", "blue", "eins", *NUMBERS])
CONVERT = DataConverter(TOKENIZER, max_length=8)

SOURCES = ["red 0", "red 1", "red 2", "red 3"]
PAIRS = Dataset.from_dict({"source": SOURCES, "target": ["eins"] * 4})

Batch = dict[str, Any]


def with_sources(make: Callable[[str], str], **options: Any) -> Dataset:
    """The pairs with other sources, made from the given ones."""

    def transform(batch: Batch) -> Batch:
        return {**batch, "source": [make(text) for text in batch["source"]]}

    return PAIRS.with_transform(transform, **options)


def text_of(feature: Batch) -> str:
    return str(TOKENIZER.decode(feature["source_ids"], skip_special_tokens=True))


def sources_of(converted: Any) -> list[str]:
    keys = [(0, index) for index in range(len(converted))]
    return [text_of(feature) for feature in converted.__getitems__(keys)]


def test_a_transform_is_applied_at_each_access() -> None:
    numbers = count()
    converted = CONVERT.pairs(with_sources(lambda _: str(next(numbers))))
    first_texts = sources_of(converted)
    second_texts = sources_of(converted)

    assert len({*first_texts, *second_texts}) == 8
    assert converted[0, 2]["index"] == converted[1, 2]["index"]


@pytest.mark.parametrize("columns", [None, ["source"]])
def test_a_transform_is_applied_next_to_a_stream(columns: list[str] | None) -> None:
    numbers = count()
    transformed = with_sources(lambda _: str(next(numbers)), columns=columns, output_all_columns=True)
    data = CONVERT.pairs({"en-de": transformed, "de-en": PAIRS.to_iterable_dataset()})

    batches = StreamBatches(data, 2, epochs=2)
    texts = [text_of(feature) for feature in chain.from_iterable(batches)]
    new_texts = set(texts) - set(SOURCES)
    assert len(texts) == 16
    assert len(new_texts) == 8


def test_the_cache_knows_the_transform() -> None:
    for word in ("blue", "1", "2"):
        converted = CONVERT.pairs(with_sources(lambda text, word=word: f"{text} {word}"))
        stored_ids = converted.rows["source_ids"][0]
        assert stored_ids == TOKENIZER(f"red 0 {word}")["input_ids"]

    assert sources_of(CONVERT.pairs(PAIRS)) == SOURCES


def test_rows_without_a_text_are_skipped() -> None:
    converted = CONVERT.pairs(with_sources(lambda text: "" if text == "red 1" else f"blue {text}"))
    assert sources_of(converted) == ["blue red 0", "blue red 2", "blue red 3"]


def test_a_row_keeps_its_text_where_a_later_draw_has_none() -> None:
    draws = count()
    converted = CONVERT.pairs(with_sources(lambda text: text if next(draws) < 4 else ""))
    assert sources_of(converted) == SOURCES


def test_another_number_of_rows_is_refused() -> None:
    doubled = PAIRS.with_transform(lambda batch: {name: values * 2 for name, values in batch.items()})
    with pytest.raises(XlsrError, match="got 8 of 'source' for 4"):
        CONVERT.pairs(doubled)


def test_an_error_of_a_transform_is_raised_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        CONVERT.pairs(with_sources(lambda _: str(1 // 0)))


NAMES = ["contradiction", "neutral", "entailment"]


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_names_of_classes_survive_a_transform(make: Callable[[list[int]], Any]) -> None:
    columns = {"premise": ["red", "blue"], "hypothesis": ["red", "eins"], "label": [2, 0]}
    types = {"premise": Value("string"), "hypothesis": Value("string"), "label": ClassLabel(names=NAMES)}
    data = Dataset.from_dict(columns, features=Features(types))
    transformed = data.with_transform(lambda batch: {**batch, "label": make(batch["label"])})

    converted = CONVERT.inference(transformed)
    labels = [converted[0, index]["label"] for index in range(2)]
    assert labels == [0, 2]  # of the task: 0 is entailment
    assert class_names(transformed) == NAMES
