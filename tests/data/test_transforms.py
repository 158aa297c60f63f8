"""Datasets with a transform: applied anew at each access, and never confused with others in the cache."""

from __future__ import annotations

from itertools import chain, count
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, Features, Value
from tokenizer_helpers import word_tokenizer

from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.raw_rows import class_names
from hf_xlsr.data.streaming import StreamBatches
from hf_xlsr.utils.errors import XlsrError

TOKENIZER = word_tokenizer(["red", "blue", "eins", *map(str, range(200))])
CONVERT = DataConverter(TOKENIZER, max_length=8)
PAIRS = Dataset.from_list([{"source": f"red {number}", "target": "eins"} for number in range(4)])


def sources(data: Any) -> list[str]:
    rows = data.__getitems__([(0, index) for index in range(len(data))])
    return [str(TOKENIZER.decode(row["source_ids"], skip_special_tokens=True)) for row in rows]


def with_sources(make: Any) -> Dataset:
    """The pairs with other sources, made from the given ones."""
    return PAIRS.with_transform(lambda batch: {**batch, "source": list(map(make, batch["source"]))})


def test_a_transform_is_applied_at_each_access() -> None:
    numbers = count()
    converted = CONVERT.pairs(with_sources(lambda _: str(next(numbers))))
    first = sources(converted)
    second = sources(converted)

    assert len({*first, *second}) == 8
    assert [converted[epoch, 2]["index"] for epoch in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("columns", [None, ["source"]])
def test_a_transform_is_applied_next_to_a_stream(columns: list[str] | None) -> None:
    numbers = count()
    transform = with_sources(lambda _: str(next(numbers))).format["format_kwargs"]["transform"]
    transformed = PAIRS.with_transform(transform, columns=columns, output_all_columns=True)
    streams = CONVERT.pairs({"en-de": transformed, "de-en": PAIRS.to_iterable_dataset()})

    seen = []
    for feature in chain.from_iterable(StreamBatches(streams, 2, epochs=2)):
        seen.append(TOKENIZER.decode(feature["source_ids"], skip_special_tokens=True))
    from_transform = {text for text in seen if "red" not in text}
    assert len(seen) == 16
    assert len(from_transform) == 8


def test_the_cache_knows_the_transform() -> None:
    for word in ("blue", "1", "2"):
        converted = CONVERT.pairs(with_sources(lambda text, word=word: f"{text} {word}"))
        assert converted.rows["source_ids"][0] == TOKENIZER(f"red 0 {word}")["input_ids"]
    assert CONVERT.pairs(PAIRS).rows["source_ids"][0] == TOKENIZER("red 0")["input_ids"]


def test_rows_without_a_text_are_skipped() -> None:
    converted = CONVERT.pairs(with_sources(lambda text: "" if text == "red 1" else f"blue {text}"))
    assert sources(converted) == ["blue red 0", "blue red 2", "blue red 3"]


def test_a_row_keeps_its_text_where_a_later_draw_has_none() -> None:
    draws = count()
    converted = CONVERT.pairs(with_sources(lambda text: text if next(draws) < 4 else ""))
    assert sources(converted) == PAIRS["source"][:]


def test_another_number_of_rows_is_refused() -> None:
    with pytest.raises(XlsrError, match="got 8 of 'source' for 4"):
        CONVERT.pairs(PAIRS.with_transform(lambda batch: {name: values * 2 for name, values in batch.items()}))


def test_an_error_of_a_transform_is_raised_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        CONVERT.pairs(with_sources(lambda _: 1 // 0))


def test_names_of_classes_survive_a_transform() -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["odd", "even"])})
    data = Dataset.from_list([{"text": "red", "label": 1}, {"text": "blue", "label": 0}], features=features)
    transformed = data.with_transform(lambda batch: {**batch, "text": [f"{text} 1" for text in batch["text"]]})

    assert class_names(transformed) == ["odd", "even"]
    assert CONVERT.labelled(transformed)[0, 0]["label"] == 1
