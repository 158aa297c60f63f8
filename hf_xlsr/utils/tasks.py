"""Stages of work as pure tasks, each of which writes one file: run here, or in a local pool of processes.

A file gets its name by an atomic rename, so a file that exists is done: the same stage, started again after a kill, does
what is missing. A folder is named for what its files are made from (`hf_xlsr.utils.hashing.cached`), so that two stages
never write different content to one name.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing import forkserver, get_all_start_methods, get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from pickle import PicklingError
from threading import Thread
from typing import Any, Protocol

from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from hf_xlsr.utils.errors import XlsrError, error_line, require_positive
from hf_xlsr.utils.files import atomic_write, private_folder

# Tasks in the hands of a pool, for each of its processes, so that none waits for the slowest.
TASKS_PER_PROCESS = 4
# Pools that may break one after the other without a finished task between.
MAX_RESTARTS = 3
MADE_HERE = ".made-by-hf-xlsr"


@dataclass(frozen=True)
class Task:
    """One file of a stage, and what it is made from, which must be picklable."""

    output: Path
    content: Any = None


Work = Callable[[Path, Any], None]
"""Writes the file of a task to the path that it is given, from the task's content."""


class Runner(Protocol):
    """Runs the tasks of a stage.

    Attributes:
        device: Where a task computes if nobody says another place; None for the best device of the machine.
    """

    device: str | None

    def run(self, work: Work, tasks: Iterable[Task], *, description: str = "") -> Iterator[Task]:
        """Yields each task once its file exists, in the order of the tasks; a bar with the description counts them."""
        ...


class InProcess:
    """Runs tasks one after the other in this process."""

    device: str | None = None

    def run(self, work: Work, tasks: Iterable[Task], *, description: str = "") -> Iterator[Task]:
        """As `Runner.run`."""
        with task_bar(tasks, description) as bar:
            for task in tasks:
                complete(work, task)
                bar.update()
                yield task


class LocalPool:
    """Runs tasks in processes of this machine, which end with this process, also if it is killed.

    Tasks are taken from their iterable as they are needed. Where a worker is killed, often for lack of memory, its task
    and those that waited run again in a new pool. Ctrl-C, or an end before the last task, ends the processes at once.
    The processes share the cores of this machine.
    """

    device: str | None = "cpu"

    def __init__(self, num_proc: int) -> None:
        require_positive("num_proc", num_proc)
        self.num_proc = num_proc

    def run(self, work: Work, tasks: Iterable[Task], *, description: str = "") -> Iterator[Task]:
        """As `Runner.run`.

        Raises:
            XlsrError: `work` cannot be pickled, or the processes are killed again and again.
        """
        remaining = iter(tasks)
        started: list[Task] = []

        failures = 0
        with task_bar(tasks, description) as bar:
            while True:
                try:
                    for task in self._run_pool(work, started, remaining):
                        failures = 0
                        bar.update()
                        yield task
                    return
                except BrokenProcessPool:
                    failures += 1
                    if failures > MAX_RESTARTS:
                        raise XlsrError(
                            "Worker processes ended again and again: they were killed, often for lack of memory (lower "
                            "`num_proc`), or a script calls this outside of `if __name__ == '__main__':`."
                        ) from None

    def _run_pool(self, work: Work, started: list[Task], remaining: Iterator[Task]) -> Iterator[Task]:
        """Runs tasks in one pool; `started` holds those in its hands, so that another pool can take them over."""
        # A fork of this process would copy the locks of the threads of tokenizers and PyTorch.
        method = "forkserver" if "forkserver" in get_all_start_methods() else "spawn"
        threads = max(1, (os.cpu_count() or 1) // self.num_proc)
        context = get_context(method)
        end_reader, end_writer = context.Pipe(duplex=False)
        pool = ProcessPoolExecutor(self.num_proc, context, _start, (work, threads, end_reader))

        jobs: list[Future[None]] = []
        try:
            jobs += [_submit(pool, task) for task in started]
            while True:
                for task in islice(remaining, self.num_proc * TASKS_PER_PROCESS - len(started)):
                    started.append(task)
                    jobs.append(_submit(pool, task))
                if not jobs:
                    return

                jobs.pop(0).result()
                yield started.pop(0)
        except (KeyboardInterrupt, GeneratorExit):
            end_writer.close()  # ends the processes; a file that is torn has no name yet
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            end_writer.close()
            end_reader.close()


def _submit(pool: ProcessPoolExecutor, task: Task) -> Future[None]:
    """Gives a task to a pool, which starts its processes, and sends them the work, when it gets its first tasks."""
    try:
        return pool.submit(_complete, task)
    except (AttributeError, TypeError, PicklingError) as error:
        raise XlsrError(
            f"Several processes cannot take this work ({error_line(error)}): define its functions and classes at the top "
            "of a module, not as a lambda or inside a function, or use one process."
        ) from error


def task_bar(tasks: Iterable[Task], description: str) -> Any:
    """A bar of the finished tasks, with their rate and, if their number is known, the time left.

    There is none without a terminal or a description.
    """
    total = len(tasks) if isinstance(tasks, Sized) else None
    return tqdm(desc=description, total=total, unit="task", disable=None if description else True)


def complete(work: Work, task: Task) -> None:
    """Writes the file of a task, unless it exists."""
    if not task.output.exists():
        with atomic_write(task.output) as partial:
            work(partial, task.content)
            with partial.open("rb") as file:
                os.fsync(file.fileno())  # a file that exists counts as done, also after the machine has crashed


@contextmanager
def resumed_folder(folder: Path, address: str) -> Iterator[Path]:
    """A private, locked folder for the files of one stage, which is removed at its end; a stop leaves the files.

    Args:
        folder: Where the folder is made. Others may use it at the same time, for other addresses. It is removed with the
            last of them if it did not exist before.
        address: Differs for other content of files of equal names.
    """
    folder = folder.absolute()
    # Only a folder that this stage made, perhaps in a call that was stopped, has this file and is removed at the end.
    made_here = folder / MADE_HERE
    try:
        folder.mkdir(parents=True)
        made_here.touch()
    except FileExistsError:
        pass

    home = private_folder(folder / address)
    try:
        lock = FileLock(home / "lock").acquire(timeout=0)
    except Timeout:
        raise XlsrError(f"'{home}' is in use: another command does the same there.") from None

    with lock:
        yield home
        # Under the lock, or a call that takes over would lose its files. Windows keeps an open lock until it is released.
        shutil.rmtree(home, ignore_errors=True)
    with suppress(OSError):
        home.rmdir()

    if made_here.exists() and not any(entry != made_here for entry in folder.iterdir()):
        with suppress(OSError):  # others begin to use it
            made_here.unlink()
            folder.rmdir()


def import_ahead(*modules: str) -> None:
    """Starts the server that workers are forked from. It imports `modules` while this process continues."""
    if "forkserver" in get_all_start_methods():
        forkserver.set_forkserver_preload(list(modules))
        forkserver.ensure_running()


_work: Work


def _start(work: Work, threads: int, end_reader: Connection) -> None:
    global _work
    _work = work
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch = sys.modules.get("torch")
    if torch is not None:  # imported before the fork
        torch.set_num_threads(threads)
    # Ctrl-C reaches all processes of a terminal: the first ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    Thread(target=_end_with_parent, args=(end_reader,), daemon=True).start()


def _end_with_parent(end_reader: Connection) -> None:
    """Ends this process with its parent, also a killed one, so that no two write one file; or when a pipe closes."""
    ends: list[Any] = [end_reader]
    parent = parent_process()
    if parent is not None:
        ends.append(parent.sentinel)
    wait(ends)
    os._exit(1)


def _complete(task: Task) -> None:
    complete(_work, task)
