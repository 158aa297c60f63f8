"""Steps of cleaning on batches of rows, as tasks that several processes or a Ray cluster run."""

from __future__ import annotations

import hashlib
import json
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import numpy as np

from hf_xlsr.data.cleaning.steps import AnyStep, identity_of
from hf_xlsr.data.cleaning.verdicts import Verdicts, judge_rows
from hf_xlsr.data.columns import Row
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.hashing import address_of
from hf_xlsr.utils.tasks import LocalPool, Runner, Task, import_ahead, resumed_folder

TASK_ROWS = 4096
STORED_TYPES = (str, int, float, bool, type(None))
"""Types of the values that steps may write in tasks: JSON gives them back as they are."""


def judged_by_tasks(
    steps: Sequence[AnyStep],
    rows: Iterable[Row],
    runner: Runner,
    folder: Path | None = None,
) -> Iterator[tuple[list[Row], list[Row], Verdicts]]:
    """Batches of rows in their order, each as it was read, then as the steps change it, then its verdicts (`judge_rows`).

    Args:
        steps: Each judges a row by itself. What a step does must follow from its `identity_of`, by which files are
            found again.
        rows: What is judged, read by this process; any values that can be pickled.
        runner: What runs the steps on each batch.
        folder: Where the files of the tasks stay until the last one was read. The same call, started again after a stop,
            does only what is missing there. None for a temporary folder.
    """
    if isinstance(runner, LocalPool):
        import_ahead(__name__)
    address = address_of([version("hf-xlsr"), *map(identity_of, steps)])

    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        home = stack.enter_context(resumed_folder(folder, address))

        def tasks() -> Iterator[Task]:
            stream = iter(rows)
            while batch := list(islice(stream, TASK_ROWS)):
                yield Task(home / f"{content_address(batch)}.npz", batch)

        for task in runner.run(partial(write_verdicts, steps), tasks(), description="cleaning"):
            yield task.content, *read_verdicts(steps, task)


def content_address(rows: Sequence[Row]) -> str:
    """A short hash of all values of rows, which a step may read."""
    return hashlib.sha256(pickle.dumps(rows)).hexdigest()[:32]


def write_verdicts(steps: Sequence[AnyStep], path: Path, rows: list[Row]) -> None:
    """Writes the verdicts of the steps on rows, and what the steps change: {number of the row: {column: value}}."""
    judged_rows, verdicts = judge_rows(steps, rows)
    changes = {}
    for number, (row, judged_row) in enumerate(zip(rows, judged_rows, strict=True)):
        if judged_row is not row:
            changes[number] = changed_columns(row, judged_row)

    text = json.dumps(changes).encode()
    with path.open("wb") as file:
        np.savez(file, verdicts=verdicts.table(), changes=np.frombuffer(text, np.uint8))


def changed_columns(row: Row, judged_row: Row) -> Row:
    """The columns of a row that steps changed or added.

    Raises:
        XlsrError: Steps removed a column, or wrote a value that a file of tasks cannot hold.

    Examples:
        >>> row = {"source": "a  b", "target": "c", "scores": (1, 2)}
        >>> changed_columns(row, {**row, "source": "a b"})
        {'source': 'a b'}
    """
    for column in row:
        if column not in judged_row:
            raise XlsrError(
                f"A cleaning step removed column {column!r}; in several processes or on Ray a step keeps all columns."
            )

    changes = {}
    for column, value in judged_row.items():
        if column in row and value is row[column]:
            continue
        if type(value) not in STORED_TYPES:
            raise XlsrError(
                f"A cleaning step wrote a value of type {type(value).__name__} to column {column!r}; in several "
                "processes or on Ray it must be a text, an int, a float, a bool or None."
            )
        changes[column] = value
    return changes


def read_verdicts(steps: Sequence[AnyStep], task: Task) -> tuple[list[Row], Verdicts]:
    """The rows of a task as the steps change them, and the verdicts."""
    with np.load(task.output) as arrays:
        verdicts = Verdicts.of_table(steps, arrays["verdicts"])
        changes = json.loads(arrays["changes"].tobytes())

    judged_rows = list(task.content)
    for number, changed_values in changes.items():
        judged_rows[int(number)] = judged_rows[int(number)] | changed_values
    return judged_rows, verdicts
