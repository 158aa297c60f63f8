"""Batches from streams as a function of seed and epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np
import pytest
from accelerate.data_loader import skip_first_batches
from datasets import Dataset, IterableDataset
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_helpers import word_tokenizer
from torch.utils.data import DataLoader

from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.sampling import MAIN, LengthBucketBatchSampler
from hf_xlsr.data.streaming import FeatureBatches, KeyedBatches, MultiTaskBatches, StreamBatches
from hf_xlsr.utils.errors import XlsrError

TOKENIZER = word_tokenizer([*"abcd", *map(str, range(1500)), "9000"])
CONVERT = DataConverter(TOKENIZER)


def rows_of(shards: list[tuple[str, int, int]]) -> Iterator[dict[str, Any]]:
    """Of each shard (language, first number, length): rows whose word is their number."""
    for language, first, length in shards:
        for number in range(first, first + length):
            yield {"text": " ".join([str(number)] * (1 + number * 7 % 13)), "lang": language}


def shards_of(language: str, first: int, size: int) -> list[tuple[str, int, int]]:
    """Three shards of a language."""
    bounds = np.linspace(0, size, 4).astype(int).tolist()
    return [(language, first + start, end - start) for start, end in pairwise(bounds)]


def generated(shards: list[tuple[str, int, int]]) -> IterableDataset:
    return IterableDataset.from_generator(rows_of, gen_kwargs={"shards": shards})


def streamed(first: int, second: int = 0) -> Any:
    """Texts of languages `a` and `b` with these numbers of rows, a stream each; numbers of `b` start at 1,000."""
    data = {"a": generated(shards_of("a", 0, first))}
    if second:
        data["b"] = generated(shards_of("b", 1000, second))
    return CONVERT.texts(data)


def partly_streamed(first: int, second: int) -> Any:
    """The same texts of known numbers, and a stream of a single row."""
    data: dict[str, Any] = {
        "a": Dataset.from_list(list(rows_of([("a", 0, first)]))),
        "b": Dataset.from_list(list(rows_of([("b", 1000, second)]))),
        "single": generated([("a", 9000, 1)]),
    }
    return CONVERT.texts(data)


def numbers(batches: Any, epoch: int = 0) -> list[list[int]]:
    """The numbers of the rows of each batch."""
    batches.set_epoch(epoch)
    result = []
    for batch in batches:
        words = [TOKENIZER.decode(feature["text_ids"][1]) for feature in batch]
        result.append(list(map(int, words)))
    return result


@settings(max_examples=25)
@given(st.integers(8, 60), st.integers(0, 40), st.integers(2, 8), st.integers(0, 2), st.booleans())
def test_every_row_once_but_for_the_tail(first: int, second: int, size: int, epoch: int, homogeneous: bool) -> None:
    stream = StreamBatches(streamed(first, second), size, buffer_size=20, homogeneous=homogeneous)

    batches = np.array(numbers(stream, epoch))

    assert batches.shape[1] == size
    assert len(np.unique(batches)) == batches.size
    if homogeneous:
        assert len(batches) == first // size + second // size
        streams = batches // 1000
        assert (streams == streams[:, :1]).all()
    else:
        assert len(batches) == (first + second) // size


@settings(max_examples=15)
@given(st.integers(16, 60), st.integers(1, 4), st.integers(2, 3), st.booleans())
def test_processes_split_the_batches_of_one_process(rows: int, size: int, processes: int, homogeneous: bool) -> None:
    options: dict[str, Any] = {"seed": 5, "homogeneous": homogeneous, "buffer_size": 30}
    data = streamed(rows, rows)
    whole = numbers(StreamBatches(data, size * processes, **options), 2)

    shares = []
    for rank in range(processes):
        batches = StreamBatches(data, size, num_processes=processes, process_index=rank, **options)
        shares.append(numbers(batches, 2))
    joined = [sum(batches, []) for batches in zip(*shares, strict=True)]
    assert joined == whole


def plain(features: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return features


@pytest.mark.parametrize("workers", [0, 2])
def test_skipping_resumes_with_equal_features(workers: int) -> None:
    def loader(epochs: int | None) -> DataLoader:
        batches = StreamBatches(streamed(50, 30), 4, buffer_size=25, epochs=epochs)
        batches.set_epoch(1)
        return DataLoader(batches, batch_size=None, collate_fn=plain, num_workers=workers)

    whole = list(loader(1))
    assert len(whole) == 20
    assert whole == list(loader(1))
    assert list(skip_first_batches(loader(1), 7)) == whole[7:]

    endless = list(islice(loader(None), 45))
    assert endless[:20] == whole
    assert list(islice(skip_first_batches(loader(None), 30), 15)) == endless[30:]


@pytest.mark.parametrize("mixing", ["proportional", "equal"])
def test_the_key_of_a_row_depends_on_its_content_alone(mixing: str) -> None:
    keys_and_texts = set()
    for seed in (1, 2):
        for rank in (0, 1):
            batches = StreamBatches(
                streamed(50, 30),
                4,
                buffer_size=25,
                epochs=2,
                seed=seed,
                mixing=mixing,
                num_processes=2,
                process_index=rank,
            )
            for feature in chain.from_iterable(batches):
                keys_and_texts.add((feature["index"], str(feature["text_ids"])))

    assert len(keys_and_texts) == 80
    assert len({key for key, _ in keys_and_texts}) == 80


@pytest.mark.parametrize("processes", [1, 2])
def test_rows_that_fill_no_batch_are_a_smaller_one_if_none_are_compared(processes: int) -> None:
    rows: list[int] = []
    for rank in range(processes):
        batches = StreamBatches(streamed(10), 8, num_processes=processes, process_index=rank, contrast=False)
        share = list(chain.from_iterable(numbers(batches)))
        assert len(share) == 10 / processes
        rows += share
    assert sorted(rows) == list(range(10))


def test_seed_changes_the_batches() -> None:
    first = StreamBatches(streamed(50, 30), 4, buffer_size=25, seed=1)
    second = StreamBatches(streamed(50, 30), 4, buffer_size=25, seed=2)
    assert numbers(first) != numbers(second)


def test_seed_changes_how_streams_are_mixed() -> None:
    mixes = set()
    for seed in (1, 2):
        batches = StreamBatches(streamed(50, 50), 1, buffer_size=20, seed=seed, contrast=False)
        streams = [number // 1000 for (number,) in numbers(batches)]
        mixes.add(sum(streams[:20]))  # rows of the second stream in the first buffer
    assert len(mixes) == 2


def counts_of(data: Any, mixing: str) -> Counter[int]:
    """How many rows of each stream are in an epoch."""
    batches = numbers(StreamBatches(data, 4, mixing=mixing))
    return Counter(number // 1000 for number in chain.from_iterable(batches))


@pytest.mark.parametrize("make", [streamed, partly_streamed])
def test_mixing(make: Callable[[int, int], Any]) -> None:
    data = make(40, 400)

    proportional = counts_of(data, "proportional")
    assert proportional[0] <= 40
    assert proportional[1] <= 400

    equal = counts_of(data, "equal")
    assert 0.8 < equal[0] / equal[1] < 1.25
    assert equal[1] >= 400 - 10


def test_mixing_by_temperature_needs_numbers_of_rows() -> None:
    data = streamed(40, 400)
    assert counts_of(data, "temperature") == counts_of(data, "equal")


def failing(count: int) -> Iterator[dict[str, str]]:
    for _ in range(count):
        yield {"en": "a b", "de": "c d"}
    raise OSError("connection lost")


def test_error_of_a_stream_is_raised_once() -> None:
    data = CONVERT.pairs(IterableDataset.from_generator(failing, gen_kwargs={"count": 3500}))
    loader = DataLoader(StreamBatches(data, 4, buffer_size=20), batch_size=None, collate_fn=plain, num_workers=1)

    batches = []
    with pytest.raises(OSError, match="connection lost"):
        batches.extend(loader)
    assert 0 < len(batches) <= 3500 // 4


def test_too_few_rows() -> None:
    with pytest.raises(XlsrError, match="4 rows, got 3 .* nli_batch_size"):
        list(StreamBatches(streamed(3), 4, batch_option="nli_batch_size", epochs=None))


def test_empty_stream() -> None:
    with pytest.raises(XlsrError, match="empty"):
        CONVERT.texts(generated([]))


PAIR = {"source": "a b b", "target": "c", "negative": None}
FORMS: dict[str, list[dict[str, Any]]] = {
    "pairs": [PAIR, {**PAIR, "negative": "d"}, {**PAIR, "source": "a"}] * 7,
    "texts": [{"text": " ", "lang": "en"}, *[{"text": "a b", "lang": "en"}] * 6] * 3,
    "inference": [{"premise": "a", "hypothesis": "b c", "label": label} for label in range(3)] * 7,
    "running_text": [{"text": "abcd"[number % 4], "document": str(number // 5)} for number in range(40)],
    "running_text of documents": [{"text": "a b\n\nc d\n\nd a"}] * 4,
}


def without_keys(features: list[dict[str, Any]]) -> list[str]:
    for feature in features:
        del feature["index"], feature["epoch"]
    return sorted(str(sorted(feature.items())) for feature in features)


@pytest.mark.parametrize("form", FORMS)
def test_streams_have_the_features_of_stored_data(form: str) -> None:
    rows = FORMS[form]
    convert = getattr(CONVERT, form.split()[0])
    stored = convert(rows)
    stream = convert(Dataset.from_list(rows).to_iterable_dataset(num_shards=1))

    features = list(chain.from_iterable(StreamBatches(stream, 2, contrast=False)))

    expected = [stored[0, index] for index in range(len(stored))]
    assert without_keys(features) == without_keys(expected)


def several_tasks() -> MultiTaskBatches:
    """Three epochs of texts, with two other tasks."""
    stored = CONVERT.texts([{"text": "a b", "lang": "en"}] * 10)
    others: dict[str, FeatureBatches] = {
        "nli": KeyedBatches(stored, LengthBucketBatchSampler(stored.lengths, 3)),
        "text": StreamBatches(streamed(6), 2),
    }
    return MultiTaskBatches(StreamBatches(streamed(20), 4), others, epochs=3)


def features_of(batch: list[dict[str, Any]], task: str) -> list[dict[str, Any]]:
    return [feature for feature in batch if feature["task"] == task]


def test_tasks_continue_over_epochs() -> None:
    batches = several_tasks()
    whole = list(batches)
    assert len(whole) == 15
    for batch in whole:
        assert Counter(feature["task"] for feature in batch) == {MAIN: 4, "nli": 3, "text": 2}

    keys = set()
    for batch in whole:
        keys.update((feature["epoch"], feature["index"]) for feature in features_of(batch, "text"))
    assert len(keys) == 30  # five epochs of six rows, each key once

    batches.set_epoch(2)
    for batch, expected in zip(islice(batches, 5), whole[10:], strict=True):
        assert features_of(batch, MAIN) == features_of(expected, MAIN)


def test_skipping_batches_of_several_tasks() -> None:
    loader = DataLoader(several_tasks(), batch_size=None, collate_fn=plain, num_workers=2)
    assert list(skip_first_batches(loader, 4)) == list(several_tasks())[4:]


def test_persistent_workers_see_the_epoch() -> None:
    batches = StreamBatches(streamed(30), 3, buffer_size=12)
    loader = DataLoader(batches, batch_size=None, collate_fn=plain, num_workers=1, persistent_workers=True)
    for epoch in (0, 3):
        batches.set_epoch(epoch)
        assert {feature["epoch"] for feature in chain.from_iterable(loader)} == {epoch}
