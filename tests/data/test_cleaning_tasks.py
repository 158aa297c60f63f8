"""Cleaning by tasks: the rows of one process, and a stopped call that continues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_xlsr.data.cleaning import Cleaner, build_steps, tasks
from hf_xlsr.data.columns import Row
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
