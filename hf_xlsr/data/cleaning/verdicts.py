"""What the steps of cleaning say of rows, and how tasks store it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hf_xlsr.data.cleaning.steps import AnyStep, ComparingStep
from hf_xlsr.data.columns import Row
from hf_xlsr.utils.errors import XlsrError


@dataclass
class Verdicts:
    """What each step says of each of some rows, without a look at the rows before them.

    Attributes:
        dropped_by: Number of the step that drops each row by itself, `(rows,)`; the number of steps if none does.
        changed_by: Whether each step changed each row, `(rows, steps)`.
        keys: Number of each step that compares rows -> hashes of the keys of each row that reaches it, `(rows, keys)`,
            uint64.
    """

    dropped_by: np.ndarray
    changed_by: np.ndarray
    keys: dict[int, np.ndarray]

    def table(self) -> np.ndarray:
        """All of them in one array, `(rows, columns)`, uint64."""
        # Each column as uint64 before they are joined: numpy would join integers and hashes as rounded floats.
        columns = [self.dropped_by, *self.changed_by.T, *self.keys.values()]
        return np.column_stack([column.astype(np.uint64) for column in columns])

    @classmethod
    def of_table(cls, steps: Sequence[AnyStep], table: np.ndarray) -> Verdicts:
        """The verdicts of the steps in a `table`."""
        column = 1 + len(steps)
        keys: dict[int, np.ndarray] = {}
        for number, step in enumerate(steps):
            if isinstance(step, ComparingStep):
                keys[number] = table[:, column : column + step.num_keys]
                column += step.num_keys
        return cls(table[:, 0], table[:, 1 : 1 + len(steps)].astype(bool), keys)


def judge_rows(steps: Sequence[AnyStep], rows: Sequence[Row]) -> tuple[list[Row], Verdicts]:
    """Rows as steps change them, and the verdicts of the steps, as if every row were new to those that compare rows.

    Raises:
        XlsrError: A step that compares rows does not give `num_keys` hashes of each row.
    """
    judged_rows = list(rows)
    dropped_by = np.full(len(rows), len(steps))
    changed_by = np.zeros((len(rows), len(steps)), dtype=bool)
    keys: dict[int, np.ndarray] = {}
    remaining = list(range(len(rows)))

    for number, step in enumerate(steps):
        remaining_rows = [judged_rows[row] for row in remaining]
        if isinstance(step, ComparingStep):
            hashes = step.hashes(remaining_rows)
            if hashes.shape[1] != step.num_keys:
                raise XlsrError(
                    f"cleaning step '{step.name}' gives {hashes.shape[1]} hashes of each row; its `num_keys` must be "
                    f"that number, got {step.num_keys}."
                )
            keys[number] = np.zeros((len(rows), step.num_keys), dtype=np.uint64)
            keys[number][remaining] = hashes
            continue

        results = step.apply(remaining_rows)
        for row, before, after in zip(remaining, remaining_rows, results, strict=True):
            if after is None:
                dropped_by[row] = number
            elif after is not before:
                changed_by[row, number] = True
                judged_rows[row] = after
        remaining = [row for row in remaining if dropped_by[row] == len(steps)]

    return judged_rows, Verdicts(dropped_by, changed_by, keys)
