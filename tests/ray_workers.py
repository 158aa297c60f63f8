"""Processes that run tasks on a Ray cluster of a test."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import psutil


def import_path(test_file: str) -> str:
    """The `PYTHONPATH` with which workers import a test file and the helpers that it imports."""
    folders = [str(Path(test_file).parent), str(Path(__file__).parent)]
    inherited = os.environ.get("PYTHONPATH")
    if inherited:
        folders.append(inherited)
    return os.pathsep.join(folders)


def kill_worker(generator: random.Random) -> bool:
    """Kills one of the processes that run tasks on nodes of this test; False if none does."""
    workers = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any("ray::_complete" in word for word in process.cmdline()):
                workers.append(process)
        except psutil.Error:
            continue
    if not workers:
        return False
    os.kill(generator.choice(workers).pid, signal.SIGKILL)
    return True
