from __future__ import annotations

import hashlib
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data import seen
from hf_xlsr.data.seen import SeenHashes, hash64

KEYS = st.text("ab", max_size=3)  # 15 keys: repeats are the rule


@pytest.fixture(params=[1, 5, 1 << 16], ids=lambda limit: f"buffer{limit}")
def buffer_limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(seen, "_BUFFER_LIMIT", request.param)
    return request.param


@settings(max_examples=50, deadline=None)
@given(calls=st.lists(st.one_of(KEYS, st.lists(KEYS, max_size=8)), max_size=25), limit=st.sampled_from([1, 3, 64]))
def test_answers_as_a_set_does(calls: list[str | list[str]], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seen, "_BUFFER_LIMIT", limit)
        ours, twin = SeenHashes(), set[str]()
        for call in calls:
            keys = [call] if isinstance(call, str) else call
            assert ours.contains_many(keys).tolist() == [key in twin for key in keys]
            expected = []
            for key in keys:
                expected.append(key not in twin)
                twin.add(key)
            answers = [ours.add(call)] if isinstance(call, str) else ours.add_many(call).tolist()
            assert answers == expected
            assert len(ours) == len(twin)
            assert all(key in ours for key in keys) and "other" not in ours


def test_many_keys_in_any_order(buffer_limit: int) -> None:
    count = 3_000 if buffer_limit == 1 else 200_000
    generator = np.random.default_rng(1)
    numbers = generator.integers(0, count // 2, count)
    ours, twin = SeenHashes(), set[int]()
    for batch in np.array_split(numbers, 50):
        expected = []
        for number in batch.tolist():
            expected.append(number not in twin)
            twin.add(number)
        assert ours.add_many([f"row {number}" for number in batch]).tolist() == expected
    assert len(ours) == len(twin)
    assert all(ours.contains_many([f"row {number}" for number in twin]))
    assert not any(ours.contains_many([f"row {number}" for number in range(count, count + 1000)]))


def test_arrays_are_few_sorted_and_more_than_double() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seen, "_BUFFER_LIMIT", 4)
        ours = SeenHashes()
        for start in range(0, 5_000, 7):
            ours.add_many([str(number) for number in range(start, start + 7)])
            sizes = [len(array) for array in ours._arrays]
            assert all(longer > 2 * shorter for longer, shorter in zip(sizes, sizes[1:], strict=False))
        assert len(ours._arrays) <= 11
        for array in ours._arrays:
            assert array.dtype == np.uint64 and (array[1:] > array[:-1]).all()


def test_eight_bytes_a_row() -> None:
    rows, batch = 4 * seen._BUFFER_LIMIT, 4096  # the last batch empties the buffer
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        ours = SeenHashes()
        for start in range(0, rows, batch):
            ours.add_many([b"%d" % number for number in range(start, start + batch)])
            assert tracemalloc.get_traced_memory()[0] - before < 2 * 8 * rows + 8_000_000  # a merge and one buffer
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(ours) == rows
    assert 8 * rows <= held < 8.2 * rows


def test_empty_batches_and_first_keys() -> None:
    ours = SeenHashes(["a", "b", "a"])
    assert len(ours) == 2
    assert ours.add_many([]).tolist() == [] and ours.contains_many([]).tolist() == []


def test_text_and_its_bytes_are_one_key() -> None:
    ours = SeenHashes(["é"])
    assert "é".encode() in ours and not ours.add("é".encode())
    assert ours.add("\ud800")  # a lone surrogate from a badly decoded file


def test_hash_is_the_same_everywhere() -> None:
    digest = hashlib.blake2b("é".encode(), digest_size=8).digest()
    assert hash64("é") == sum(byte << 8 * place for place, byte in enumerate(digest))
    assert seen._hash_array(["é"]).tolist() == [hash64("é")]
