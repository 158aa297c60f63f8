from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data import seen
from hf_xlsr.data.seen import SeenHashes, hash_keys

KEYS = st.text("ab", max_size=3)  # 15 keys: repeats are the rule


@settings(max_examples=50)
@given(calls=st.lists(st.lists(KEYS, max_size=8), max_size=25), limit=st.sampled_from([1, 3, 64]))
def test_answers_equal_a_set(calls: list[list[str]], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seen, "BUFFER_LIMIT", limit)
        hashes = SeenHashes()
        twin = set[str]()
        for keys in calls:
            assert hashes.contains_many(keys).tolist() == [key in twin for key in keys]

            expected = []
            for key in keys:
                expected.append(key not in twin)
                twin.add(key)
            assert hashes.add_hashes(hash_keys(keys)).tolist() == expected
            assert len(hashes) == len(twin)
            assert hashes.contains_many(keys).all()
            assert not hashes.contains_many(["other"]).any()


@pytest.mark.slow
def test_eight_bytes_a_row() -> None:
    rows = 4 * seen.BUFFER_LIMIT
    batch = 4096  # the last one empties the buffer
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        hashes = SeenHashes()
        for start in range(0, rows, batch):
            hashes.add_hashes(hash_keys(list(map(str, range(start, start + batch)))))
            held = tracemalloc.get_traced_memory()[0] - before
            assert held < 2 * 8 * rows + 8_000_000  # a merge and one buffer
    finally:
        tracemalloc.stop()
    assert len(hashes) == rows
    assert 8 * rows <= held < 8.2 * rows
