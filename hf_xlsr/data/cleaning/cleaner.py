"""Runs rows through steps of cleaning, and counts what each step did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import islice
from pathlib import Path

import numpy as np

from hf_xlsr.data.cleaning.steps import AnyStep, ComparingStep, texts_of
from hf_xlsr.data.cleaning.tasks import judged_by_tasks
from hf_xlsr.data.cleaning.verdicts import Verdicts, judge_rows
from hf_xlsr.data.columns import Row
from hf_xlsr.data.seen import SeenHashes, hash64
from hf_xlsr.utils.tasks import InProcess, Runner

BATCH_ROWS = 1024


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

    def __call__(
        self,
        rows: Iterable[Row],
        *,
        runner: Runner | None = None,
        folder: Path | None = None,
    ) -> Iterator[Row]:
        """Yields the rows that are kept, in order. Rows are read and counted in batches.

        Args:
            rows: What is cleaned, read by this process.
            runner: What runs the steps on each batch, such as a `LocalPool` or a `RayRunner`; this process by default.
                Steps that compare rows compare hashes here. The result is the same if every other step judges a row by
                itself: a step that counts rows would count those of each process.
            folder: Where the batches of a runner are kept until the last one was read, so that the same call continues
                after a stop; None for a temporary one. Steps are known by their `repr`: remove the folder after a change
                of the code of an own step.
        """
        if runner is None or isinstance(runner, InProcess):
            batches = self._judged_here(rows)
        else:
            batches = judged_by_tasks(self.steps, rows, runner, folder)

        for batch, judged_rows, verdicts in batches:
            last_steps = self.last_steps(verdicts)
            if self.examples is not None:
                self.examples.add(batch, last_steps, len(self.steps))
            for row in np.flatnonzero(last_steps == len(self.steps)).tolist():
                yield judged_rows[row]

    def _judged_here(self, rows: Iterable[Row]) -> Iterator[tuple[list[Row], list[Row], Verdicts]]:
        """Batches of rows, as they are read and as steps change them, with the verdicts."""
        stream = iter(rows)
        while batch := list(islice(stream, BATCH_ROWS)):
            yield batch, *judge_rows(self.steps, batch)

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
