"""Work on spans of rows: all rows at once in this process, or as tasks that write a file of arrays each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from hf_xlsr.mining.work_folder import Stage, write_arrays
from hf_xlsr.utils.tasks import InProcess, Runner, Task

FOLDER = "tasks"

Arrays = Mapping[str, np.ndarray]
SpanWork = Callable[[int, int], Arrays]
"""What is computed of the rows from a start to a stop; picklable where other processes run it."""

Part = Arrays | Path
"""The arrays of a span, or the file that holds them."""


class SpanTasks:
    """Runs work on spans of rows, in the folder of a stage, or in memory if the stage has none.

    With a folder, a later call keeps the finished files of the same spans. Other spans, as after a change of memory, have
    other files.
    """

    def __init__(self, stage: Stage, runner: Runner | None = None, show_progress_bar: bool = False) -> None:
        self.stage = stage
        self.runner = runner or InProcess()
        self.quiet = not show_progress_bar

    @property
    def is_shared(self) -> bool:
        """Whether other processes run the tasks."""
        return self.stage.path is not None and not isinstance(self.runner, InProcess)

    @property
    def folder(self) -> Path:
        """Where the files of tasks are."""
        assert self.stage.path is not None
        folder = self.stage.path / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def run(
        self,
        name: str,
        work: SpanWork,
        count: int,
        rows: int,
        *,
        resumable: bool = True,
    ) -> Iterator[tuple[int, Part]]:
        """The start and the arrays of each span of `count` rows, in order.

        A span has `rows` rows; without a folder there is one span. Where no other process takes part, work that is not
        `resumable` writes no file.
        """
        if self.stage.path is None:
            yield 0, work(0, count)
            return

        spans = [(start, min(start + rows, count)) for start in range(0, count, rows)]
        if not resumable and not self.is_shared:
            for start, stop in spans:
                yield start, work(start, stop)
            return

        tasks = [Task(self.folder / f"{name}-{start}-{stop}.npz", (start, stop)) for start, stop in spans]

        description = "" if self.quiet else name.replace("-", " ")
        for task in self.runner.run(partial(_save_span, work), tasks, description=description):
            start, _ = task.content
            yield start, task.output


@contextmanager
def opened(part: Part) -> Iterator[Arrays]:
    """The arrays of a span; those of a file are read when they are asked for."""
    if isinstance(part, Path):
        with np.load(part) as arrays:
            yield arrays
    else:
        yield part


def array_of(part: Part, name: str) -> np.ndarray:
    """One array of a span."""
    with opened(part) as arrays:
        return arrays[name]


def _save_span(work: SpanWork, output: Path, span: tuple[int, int]) -> None:
    write_arrays(output, **work(*span))
