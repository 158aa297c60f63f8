"""The index from hashes to numbers, against a dict."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.utils import hash_index
from hf_xlsr.utils.hash_index import HashIndex

HASH = st.one_of(st.integers(0, 20), st.integers(0, 2**64 - 1))


@settings(max_examples=200)
@given(
    batches=st.lists(st.lists(HASH, max_size=30), max_size=8),
    queries=st.lists(HASH, max_size=20),
    block=st.sampled_from([1, 3, 100]),
)
def test_finds_what_a_dict_finds(batches: list[list[int]], queries: list[int], block: int) -> None:
    index = HashIndex()
    numbers_of: dict[int, set[int]] = {}
    count = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hash_index, "ENTRIES_AT_ONCE", block)
        for batch in batches:
            numbers = np.arange(count, count + len(batch), dtype=np.uint64)
            index.add(np.array(batch, np.uint64), numbers)
            for hash_, number in zip(batch, numbers.tolist(), strict=True):
                numbers_of.setdefault(hash_, set()).add(number)
            count += len(batch)

    queries += numbers_of
    numbers, is_known = index.find(np.array(queries, np.uint64))

    assert len(index) == count
    assert is_known.tolist() == [query in numbers_of for query in queries]
    for query, number in zip(queries, numbers.tolist(), strict=True):
        assert number in numbers_of.get(query, {0})


def test_runs_are_few() -> None:
    """Each is more than twice as long as the next."""
    index = HashIndex()
    rng = np.random.default_rng(0)
    for _ in range(200):
        index.add(rng.integers(0, 2**63, 10).astype(np.uint64), np.zeros(10, np.uint64))
    assert len(index._runs) <= 8


def test_takes_24_bytes_an_entry_at_most_while_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_index, "ENTRIES_AT_ONCE", 1 << 12)  # the usual block is small beside millions of entries
    index = HashIndex()
    rng = np.random.default_rng(0)
    count = 100_000
    hashes = rng.integers(0, 2**63, count).astype(np.uint64)
    tracemalloc.start()
    for start in range(0, count, 2000):
        index.add(hashes[start : start + 2000], np.arange(2000, dtype=np.uint64))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 24 * count, peak / count
