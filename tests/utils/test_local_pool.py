"""The pool of processes: its end before the last task, and work that it cannot take."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Timer, main_thread
from time import perf_counter, sleep

import pytest

from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.tasks import LocalPool, Task

SECONDS = 60


def write_or_sleep(path: Path, seconds: float) -> None:
    sleep(seconds)
    path.write_text("done", "utf-8")


def slow_tasks(folder: Path) -> Iterator[Task]:
    """A fast task, then slow ones."""
    for number in range(6):
        yield Task(folder / str(number), SECONDS if number else 0)


def test_an_early_end_waits_for_no_task(tmp_path: Path) -> None:
    start = perf_counter()
    finished = LocalPool(2).run(write_or_sleep, slow_tasks(tmp_path))
    assert next(finished).output.read_text("utf-8") == "done"

    finished.close()  # type: ignore[attr-defined]  # a generator
    assert perf_counter() - start < SECONDS
    assert not (tmp_path / "1").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_waits_for_no_task(tmp_path: Path, interruptible: None) -> None:
    start = perf_counter()
    finished = LocalPool(2).run(write_or_sleep, slow_tasks(tmp_path))
    next(finished)

    Timer(0.5, signal.pthread_kill, [main_thread().ident, signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        next(finished)
    assert perf_counter() - start < SECONDS


def test_work_that_cannot_be_pickled_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match=r"lambda.*module"):
        list(LocalPool(2).run(lambda path, seconds: path.touch(), slow_tasks(tmp_path)))
