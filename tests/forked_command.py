"""Runs of the command in processes that a fork server makes: they do not import torch and transformers again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["torch", "transformers", "datasets", "hf_xlsr.cli", "hf_xlsr.runs.train"])


def start_workers_by_fork() -> None:
    """Undoes that a process of a fork server makes fork servers of its own, whose workers import torch again."""
    multiprocessing.set_start_method("fork", force=True)


def _command(words: list[str], log: Path) -> None:
    from hf_xlsr.cli import main

    start_workers_by_fork()
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(main(words))


class Command:
    """`hf-xlsr WORDS` in a process of its own, which prints to the file `log`."""

    def __init__(self, *words: str | Path, log: Path) -> None:
        self.log = log
        self.process = SERVER.Process(target=_command, args=([str(word) for word in words], log))
        self.process.start()

    @property
    def text(self) -> str:
        """What was printed so far."""
        return self.log.read_text("utf-8") if self.log.is_file() else ""

    def wait_for(self, condition: Callable[[], object], seconds: float = 120) -> None:
        """Waits until a condition holds while the command runs."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.is_alive(), f"the command ended early:\n{self.text}"
            assert time.monotonic() < deadline, "the condition did not hold in time"
            time.sleep(0.005)

    def send(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def finish(self, status: int = 0, seconds: float = 200) -> str:
        """Waits for the end and its exit status; returns what was printed."""
        self.process.join(seconds)
        assert self.process.exitcode == status, self.text
        return self.text

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
