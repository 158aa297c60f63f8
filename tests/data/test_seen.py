from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data import seen
from hf_xlsr.data.seen import SeenHashes

KEYS = st.text("ab", max_size=3)  # 15 keys: repeats are the rule


@settings(max_examples=50, deadline=None)
@given(calls=st.lists(st.one_of(KEYS, st.lists(KEYS, max_size=8)), max_size=25), limit=st.sampled_from([1, 3, 64]))
def test_answers_equal_a_set(calls: list[str | list[str]], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seen, "BUFFER_LIMIT", limit)
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


def test_eight_bytes_a_row() -> None:
    rows, batch = 4 * seen.BUFFER_LIMIT, 4096  # the last batch empties the buffer
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
    assert len(ours) == rows and 8 * rows <= held < 8.2 * rows
