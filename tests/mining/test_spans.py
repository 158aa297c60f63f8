"""Work on spans of rows: a later call takes over the finished files of its own spans, and no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_xlsr.mining.search.spans import Arrays, SpanTasks, array_of
from hf_xlsr.mining.work_folder import Stage


def numbers(start: int, stop: int) -> Arrays:
    return {"numbers": np.arange(start, stop)}


def rows_of(tasks: SpanTasks, count: int, rows: int) -> list[int]:
    parts = [array_of(part, "numbers") for _, part in tasks.run("count", numbers, count, rows)]
    return np.concatenate(parts).tolist()


@given(
    count=st.integers(1, 30), rows=st.lists(st.integers(1, 12), min_size=2, max_size=4), stopped_at=st.integers(0, 3)
)
def test_a_resume_with_other_spans_has_all_rows(
    tmp_path_factory: pytest.TempPathFactory, count: int, rows: list[int], stopped_at: int
) -> None:
    folder = tmp_path_factory.mktemp("spans")
    for size in rows[:-1]:
        parts = SpanTasks(Stage(folder)).run("count", numbers, count, size)
        for _ in zip(range(stopped_at), parts, strict=False):
            pass
    assert rows_of(SpanTasks(Stage(folder)), count, rows[-1]) == list(range(count))


def test_finished_spans_are_kept(tmp_path: Path) -> None:
    def refuse(start: int, stop: int) -> Arrays:
        raise AssertionError(f"rows {start} to {stop} again")

    rows_of(SpanTasks(Stage(tmp_path)), 10, 4)
    assert [start for start, _ in SpanTasks(Stage(tmp_path)).run("count", refuse, 10, 4)] == [0, 4, 8]
