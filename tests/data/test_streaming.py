"""Batches from streams as a function of seed and epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
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


def streamed(*parts: int, shards: int = 3, known: bool = False) -> Any:
    """Texts of languages `a`, `b`, ... with these numbers of rows, a stream each; numbers of `b` start at 1,000."""
    data: dict[str, Any] = {}
    for number, (language, size) in enumerate(zip("abc", parts, strict=False)):
        bounds = np.linspace(0, size, shards + 1).astype(int).tolist()
        pieces = [(language, 1000 * number + start, end - start) for start, end in pairwise(bounds)]
        data[language] = generated(pieces)
        if known:
            data[language] = Dataset.from_list(list(rows_of(pieces)))
    if known:
        data["empty"] = generated([("a", 9000, 1)])
    return CONVERT.texts(data)


def generated(shards: list[tuple[str, int, int]]) -> IterableDataset:
    return IterableDataset.from_generator(rows_of, gen_kwargs={"shards": shards})


def numbers(batches: Any, epoch: int = 0) -> list[list[int]]:
    batches.set_epoch(epoch)
    return [[int(TOKENIZER.decode(feature["text_ids"][1])) for feature in batch] for batch in batches]


@settings(max_examples=25, deadline=None)
@given(st.integers(8, 60), st.integers(0, 40), st.integers(2, 8), st.integers(0, 2), st.booleans())
def test_every_row_once_but_for_the_tail(first: int, second: int, size: int, epoch: int, homogeneous: bool) -> None:
    data = streamed(first, second) if second else streamed(first)
    batches = np.array(numbers(StreamBatches(data, size, buffer_size=20, homogeneous=homogeneous), epoch))
    assert batches.shape[1] == size
    if homogeneous:
        assert len(batches) == first // size + second // size
        streams = batches // 1000
        assert (streams == streams[:, :1]).all()
    else:
        assert len(batches) == (first + second) // size
    assert len(np.unique(batches)) == batches.size


@settings(max_examples=15, deadline=None)
@given(st.integers(16, 60), st.integers(1, 4), st.integers(2, 3), st.booleans())
def test_processes_split_the_batches_of_one_process(rows: int, size: int, processes: int, homogeneous: bool) -> None:
    options: dict[str, Any] = {"seed": 5, "homogeneous": homogeneous, "buffer_size": 30}
    data = streamed(rows, rows)
    whole = numbers(StreamBatches(data, size * processes, **options), 2)
    shares = []
    for rank in range(processes):
        batches = StreamBatches(data, size, num_processes=processes, process_index=rank, **options)
        shares.append(numbers(batches, 2))
    assert whole == [sum(batches, []) for batches in zip(*shares, strict=True)]


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
    texts_of_key: dict[int, set[str]] = {}
    for seed in (1, 2):
        for rank in (0, 1):
            options: dict[str, Any] = {"seed": seed, "process_index": rank, "num_processes": 2, "mixing": mixing}
            batches = StreamBatches(streamed(50, 30), 4, buffer_size=25, epochs=2, **options)
            for feature in chain.from_iterable(batches):
                texts_of_key.setdefault(feature["index"], set()).add(str(feature["text_ids"]))

    assert len(texts_of_key) == 80
    assert {len(texts) for texts in texts_of_key.values()} == {1}


@pytest.mark.parametrize("processes", [1, 2])
def test_rows_that_fill_no_batch_are_a_smaller_one_if_none_are_compared(processes: int) -> None:
    seen: list[int] = []
    for rank in range(processes):
        options: dict[str, Any] = {"num_processes": processes, "process_index": rank, "contrast": False}
        batches = numbers(StreamBatches(streamed(10), 8, **options))
        assert sum(map(len, batches)) == 10 / processes
        seen += chain.from_iterable(batches)
    assert sorted(seen) == list(range(10))


def test_seed_changes_the_batches() -> None:
    first, second = (StreamBatches(streamed(50, 30), 4, buffer_size=25, seed=seed) for seed in (1, 2))
    assert numbers(first) != numbers(second)


def test_seed_changes_how_streams_are_mixed() -> None:
    mixes = set()
    for seed in (1, 2):
        batches = StreamBatches(streamed(50, 50), 1, buffer_size=20, seed=seed, contrast=False)
        streams = [number // 1000 for (number,) in numbers(batches)]
        mixes.add(sum(streams[:20]))  # rows of the second stream in the first buffer
    assert len(mixes) == 2


@pytest.mark.parametrize("known", [False, True])
def test_mixing(known: bool) -> None:
    data = streamed(40, 400, known=known)
    counts = {}
    for mixing in ("proportional", "equal", "temperature"):
        batches = numbers(StreamBatches(data, 4, mixing=mixing))
        counts[mixing] = Counter(number // 1000 for number in chain.from_iterable(batches))

    assert counts["proportional"][0] <= 40
    assert counts["proportional"][1] <= 400
    assert 0.8 < counts["equal"][0] / counts["equal"][1] < 1.25
    assert counts["equal"][1] >= 400 - 10
    if not known:
        assert counts["temperature"] == counts["equal"]


def failing(count: int) -> Iterator[dict[str, str]]:
    yield from ({"en": "a b", "de": "c d"} for _ in range(count))
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
    with pytest.raises(XlsrError, match="empty"):
        CONVERT.texts(generated([]))


FORMS: dict[str, Any] = {
    "pairs": [{"source": f"a {'b ' * (i % 5)}", "target": "c", "negative": "d" if i % 2 else None} for i in range(20)],
    "texts": [{"text": "a b" if i % 7 else " ", "lang": "en"} for i in range(20)],
    "inference": [{"premise": "a", "hypothesis": "b c", "label": i % 3} for i in range(20)],
    "running_text": [{"text": "abcd"[i % 4], "document": str(i // 5)} for i in range(40)],
    "running_text of documents": [{"text": "a b\n\nc d\n\nd a"} for _ in range(4)],
}


@pytest.mark.parametrize("form", FORMS)
def test_streams_have_the_features_of_stored_data(form: str) -> None:
    rows = FORMS[form]
    convert = getattr(CONVERT, form.split()[0])
    stored = convert(rows)
    stream = convert(Dataset.from_list(rows).to_iterable_dataset(num_shards=1))
    features = list(chain.from_iterable(StreamBatches(stream, 2, contrast=False)))
    expected = [stored[0, index] for index in range(len(stored))]

    assert len(features) >= len(expected) - 1
    assert without_keys(features) == without_keys(expected[: len(features)])


def without_keys(features: list[dict[str, Any]]) -> list[str]:
    for feature in features:
        del feature["index"], feature["epoch"]
    return sorted(str(sorted(feature.items())) for feature in features)


def test_tasks_continue_over_epochs() -> None:
    stored = CONVERT.texts([{"text": "a b", "lang": "en"}] * 10)

    def make(**options: Any) -> MultiTaskBatches:
        nli = KeyedBatches(stored, LengthBucketBatchSampler(stored.lengths, 3))
        others: dict[str, FeatureBatches] = {"nli": nli, "text": StreamBatches(streamed(6), 2)}
        return MultiTaskBatches(StreamBatches(streamed(20), 4), others, **options)

    batches = make(epochs=3)
    whole = list(batches)
    assert len(whole) == 15
    for batch in whole:
        assert Counter(feature["task"] for feature in batch) == {MAIN: 4, "nli": 3, "text": 2}

    keys = [(feature["epoch"], feature["index"]) for batch in whole for feature in batch if feature["task"] == "text"]
    assert len(set(keys)) == 30  # five epochs of six rows, each key once

    batches.set_epoch(2)
    assert list(map(of_main, islice(batches, 5))) == list(map(of_main, whole[10:]))
    loader = DataLoader(make(epochs=3), batch_size=None, collate_fn=plain, num_workers=2)
    assert list(skip_first_batches(loader, 4)) == whole[4:]


def of_main(batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [feature for feature in batch if feature["task"] == MAIN]


def test_persistent_workers_see_the_epoch() -> None:
    batches = StreamBatches(streamed(30), 3, buffer_size=12)
    loader = DataLoader(batches, batch_size=None, collate_fn=plain, num_workers=1, persistent_workers=True)
    for epoch in (0, 3):
        batches.set_epoch(epoch)
        assert {feature["epoch"] for batch in loader for feature in batch} == {epoch}
