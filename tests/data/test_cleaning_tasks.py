"""Cleaning by tasks: the rows of one process, and a stopped call that continues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_xlsr.data.cleaning import Cleaner, ComparingStep, build_steps, tasks
from hf_xlsr.data.columns import Row
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.tasks import Task, Work, complete

STEPS = build_steps(["normalize", "drop_identical", "near_duplicates", {"deduplicate": {"on": "target"}}])
ROWS: list[Row] = []
for number in range(200):
    ROWS.append({"source": f"dog {number % 90}", "target": f"Hund  {'x' * (number % 37)}", "score": number / 7})
ROWS[30] |= {"source": "a\ud800", "score": float("inf"), "note": None}


class Stepwise:
    """Runs tasks here, up to a number of new ones."""

    device: str | None = None

    def __init__(self, most: int) -> None:
        self.most = most
        self.made = 0

    def run(self, work: Work, tasks: Iterable[Task], *, description: str = "") -> Iterator[Task]:
        for task in tasks:
            if not task.output.exists():
                if self.made == self.most:
                    raise KeyboardInterrupt
                self.made += 1
            complete(work, task)
            yield task


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "TASK_ROWS", 30)


def cleaned(runner: Any = None, folder: Path | None = None) -> tuple[list[Row], dict[str, Any]]:
    cleaner = Cleaner(STEPS)
    rows = list(cleaner(iter(ROWS), runner=runner, folder=folder))
    return rows, cleaner.counts


def test_rows_and_counts_of_tasks_are_those_of_one_process() -> None:
    rows, counts = cleaned(Stepwise(100))
    assert (rows, counts) == cleaned()
    assert 0 < len(rows) < len(ROWS)
    assert counts["normalize"]["changed"] > 0


def test_stopped_call_continues(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        cleaned(Stepwise(4), tmp_path / "work")
    second = Stepwise(100)
    assert cleaned(second, tmp_path / "work") == cleaned()
    assert second.made == 3
    assert not (tmp_path / "work").exists()


def test_files_of_other_steps_are_not_taken(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        cleaned(Stepwise(4), tmp_path / "work")
    other = Stepwise(100)
    list(Cleaner(build_steps(["normalize"]))(ROWS, runner=other, folder=tmp_path / "work"))
    assert other.made == 7


@pytest.mark.parametrize(
    "value",
    [date(2020, 1, 1), b"x", np.float32(0.5), (1, 2), {1: 2}, {1, 2}],
    ids=lambda value: type(value).__name__,
)
def test_other_columns_keep_their_values(value: Any) -> None:
    rows = [{"source": "a  b", "target": "c", "extra": value, 7: value}]
    (row,) = Cleaner(build_steps(["normalize"]))(rows, runner=Stepwise(1))  # type: ignore[arg-type]
    assert row == {"source": "a b", "target": "c", "extra": value, 7: value}
    assert type(row["extra"]) is type(value)


def test_rows_that_differ_in_the_middle_of_an_array_are_two_tasks() -> None:
    arrays = [np.zeros(3000), np.zeros(3000)]
    arrays[1][1500] = 1
    addresses = {tasks.content_address([{"source": "a", "target": "b", "vector": array}]) for array in arrays}
    assert len(addresses) == 2


def test_tasks_store_the_changed_columns_alone() -> None:
    row = {"source": "a  b", "target": "c", "note": "x"}
    assert tasks.changed_columns(row, {**row, "source": "a b", "score": 0.5}) == {"source": "a b", "score": 0.5}


@pytest.mark.parametrize(
    "judged_row", [{"source": "a"}, {"source": "a", "note": np.float32(1)}], ids=["gone", "float32"]
)
def test_changes_that_a_file_cannot_hold_are_refused(judged_row: Row) -> None:
    with pytest.raises(XlsrError, match="'note'"):
        tasks.changed_columns({"source": "a", "note": "x"}, judged_row)


def test_steps_give_as_many_hashes_as_keys() -> None:
    class TwoKeys(ComparingStep):
        name = "two_keys"

        def hashes(self, rows: Sequence[Row]) -> np.ndarray:
            return np.zeros((len(rows), 2), dtype=np.uint64)

    with pytest.raises(XlsrError, match=r"'two_keys' gives 2 .* got 1"):
        list(Cleaner([TwoKeys()])(ROWS))


def test_folder_of_the_user_stays(tmp_path: Path) -> None:
    cleaned(Stepwise(100), tmp_path)
    assert list(tmp_path.iterdir()) == []
