"""Steps of cleaning on batches of rows, as tasks that several processes or a Ray cluster run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import numpy as np

from hf_xlsr.data.cleaning.steps import AnyStep
from hf_xlsr.data.cleaning.verdicts import Verdicts, judge_rows
from hf_xlsr.data.columns import Row
from hf_xlsr.utils.hashing import address_of
from hf_xlsr.utils.tasks import LocalPool, Runner, Task, import_ahead, resumed_folder

TASK_ROWS = 4096


def judged_by_tasks(
    steps: Sequence[AnyStep],
    rows: Iterable[Row],
    runner: Runner,
    folder: Path | None = None,
) -> Iterator[tuple[list[Row], list[Row], Verdicts]]:
    """Batches of rows, as they are read and as steps change them, with the verdicts of `judge_rows`, in their order.

    Files of the tasks stay in `folder` until the last one was read, so that the same call continues after a stop; None
    is a temporary folder.
    """
    if isinstance(runner, LocalPool):
        import_ahead(__name__)
    address = address_of([version("hf-xlsr"), *map(repr, steps)])

    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        home = stack.enter_context(resumed_folder(folder, address))

        def tasks() -> Iterator[Task]:
            stream = iter(rows)
            while batch := list(islice(stream, TASK_ROWS)):
                yield Task(home / f"{address_of(batch)}.npz", batch)

        for task in runner.run(partial(write_verdicts, steps), tasks(), description="cleaning"):
            yield task.content, *read_verdicts(steps, task)


def write_verdicts(steps: Sequence[AnyStep], path: Path, rows: list[Row]) -> None:
    """Writes the verdicts of the steps on rows, and the rows that the steps change, with their numbers."""
    judged_rows, verdicts = judge_rows(steps, rows)
    changed_rows = {}
    for number, (row, judged_row) in enumerate(zip(rows, judged_rows, strict=True)):
        if judged_row is not row:
            changed_rows[number] = judged_row

    text = json.dumps(changed_rows).encode()
    with path.open("wb") as file:
        np.savez(file, verdicts=verdicts.table(), changed_rows=np.frombuffer(text, np.uint8))


def read_verdicts(steps: Sequence[AnyStep], task: Task) -> tuple[list[Row], Verdicts]:
    """The rows of a task as the steps change them, and the verdicts."""
    with np.load(task.output) as arrays:
        verdicts = Verdicts.of_table(steps, arrays["verdicts"])
        changed_rows = json.loads(arrays["changed_rows"].tobytes())

    judged_rows = list(task.content)
    for number, row in changed_rows.items():
        judged_rows[int(number)] = row
    return judged_rows, verdicts
