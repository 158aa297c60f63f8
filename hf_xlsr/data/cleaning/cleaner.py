"""Runs rows through steps of cleaning, and counts what each step did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice

import numpy as np

from hf_xlsr.data.cleaning.steps import AnyStep, ComparingStep, texts_of
from hf_xlsr.data.columns import Row
from hf_xlsr.data.seen import SeenHashes, hash64

BATCH_ROWS = 1024


@dataclass
class Verdicts:
    """What each step says of each of some rows, whatever rows come before them.

    Attributes:
        dropped_by: Number of the step that drops each row by itself, `(rows,)`; the number of steps if none does.
        changed_by: Whether each step changed each row, `(rows, steps)`.
        keys: Number of each step that compares rows -> hashes of the keys of each row that reaches it, `(rows, keys)`,
            uint64.
    """

    dropped_by: np.ndarray
    changed_by: np.ndarray
    keys: dict[int, np.ndarray]


def judge_rows(steps: Sequence[AnyStep], rows: Sequence[Row]) -> tuple[list[Row], Verdicts]:
    """Rows as steps change them, and the verdicts of the steps, as if every row were new to those that compare rows."""
    judged_rows = list(rows)
    dropped_by = np.full(len(rows), len(steps))
    changed_by = np.zeros((len(rows), len(steps)), dtype=bool)
    keys: dict[int, np.ndarray] = {}
    remaining = list(range(len(rows)))

    for number, step in enumerate(steps):
        remaining_rows = [judged_rows[row] for row in remaining]
        if isinstance(step, ComparingStep):
            hashes = step.hashes(remaining_rows)
            keys[number] = np.zeros((len(rows), hashes.shape[1]), dtype=np.uint64)
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


class RemovedExamples:
    """Up to `count` pairs that each step removes, drawn by a hash of their texts.

    Attributes:
        by_step: Number of the step -> its pairs.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.by_step: dict[int, list[Row]] = {}

    def add(self, rows: Sequence[Row], last_steps: np.ndarray, num_steps: int) -> None:
        """Takes rows, each with the number of the step that removes it, or the number of steps."""
        for row, step in zip(rows, last_steps.tolist(), strict=True):
            if step < num_steps:
                self.by_step.setdefault(step, []).append(row)
        for step, examples in self.by_step.items():
            self.by_step[step] = drawn(examples, self.count)


def drawn(rows: Iterable[Row], count: int) -> list[Row]:
    """Up to `count` of the rows, drawn by a hash of their texts: the same ones in any order."""
    return nsmallest(count, rows, key=lambda row: hash64("\t".join(texts_of(row))))


class Cleaner:
    """Runs rows through steps, and counts what each step did. A second pass needs a new cleaner.

    Examples:
        >>> from hf_xlsr.data.cleaning import DropIdentical, Normalize
        >>> cleaner = Cleaner([Normalize(), DropIdentical()])
        >>> list(cleaner([{"source": "a  b", "target": "c"}, {"source": "OK", "target": "ok."}]))
        [{'source': 'a b', 'target': 'c'}]
        >>> cleaner.counts
        {'normalize': {'in': 2, 'out': 2, 'changed': 1}, 'drop_identical': {'in': 2, 'out': 1, 'changed': 0}}
    """

    def __init__(self, steps: Iterable[AnyStep] = (), examples: RemovedExamples | None = None) -> None:
        self.steps = list(steps)
        self.examples = examples
        """Gets the rows of each batch that steps remove."""
        self.counts: dict[str, dict[str, int]] = {}
        """Step -> rows `in`, `out`, and `changed` of these. The second step of one name is called `length-2`."""

        self._seen: dict[int, SeenHashes] = {}
        repeats = Counter[str]()
        for number, step in enumerate(self.steps):
            name = step.name
            repeats[name] += 1
            if repeats[name] > 1:
                name = f"{name}-{repeats[name]}"
            self.counts[name] = {"in": 0, "out": 0, "changed": 0}
            if isinstance(step, ComparingStep):
                self._seen[number] = SeenHashes()

    def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields the rows that are kept, in order. Rows are read and counted in batches of 1024."""
        stream = iter(rows)
        while batch := list(islice(stream, BATCH_ROWS)):
            judged_rows, verdicts = judge_rows(self.steps, batch)
            last_steps = self.last_steps(verdicts)
            if self.examples is not None:
                self.examples.add(batch, last_steps, len(self.steps))
            for row in np.flatnonzero(last_steps == len(self.steps)).tolist():
                yield judged_rows[row]

    def keeps(self, verdicts: Verdicts, limit: int | None = None) -> np.ndarray:
        """Whether each row is kept, `(rows,)`, after all rows before it.

        With a limit, rows end with the last one that is kept: `(rows up to it,)`. Later ones are not counted.
        """
        is_kept: np.ndarray = self.last_steps(verdicts, limit) == len(self.steps)
        return is_kept

    def last_steps(self, verdicts: Verdicts, limit: int | None = None) -> np.ndarray:
        """The number of the step that drops each row, `(rows,)`; the number of steps for rows that stay, see `keeps`."""
        last_step: np.ndarray = verdicts.dropped_by.copy()
        for number, keys_before in self._seen.items():
            reaches = np.flatnonzero(last_step >= number)
            hashes = verdicts.keys[number][reaches]
            is_new = keys_before.add_hashes(hashes.ravel()).reshape(hashes.shape).all(axis=1)
            last_step[reaches[~is_new]] = number

        kept_rows = np.flatnonzero(last_step == len(self.steps))
        if limit is not None and len(kept_rows) >= limit:
            last_step = last_step[: kept_rows[limit - 1] + 1]

        for number, count in enumerate(self.counts.values()):
            passes = last_step > number
            count["in"] += int((last_step >= number).sum())
            count["out"] += int(passes.sum())
            count["changed"] += int((passes & verdicts.changed_by[: len(passes), number]).sum())
        return last_step
