"""An index from hashes to numbers that takes 16 bytes an entry."""

from __future__ import annotations

import numpy as np

ENTRIES_AT_ONCE = 1 << 16  # moved at a time


class HashIndex:
    """Finds the number of a 64-bit hash, in sorted arrays instead of a dict.

    Entries that are added form a sorted run, which is merged into the run before once that is at most twice as long. Of
    entries with equal hashes one is found.

    Examples:
        >>> index = HashIndex()
        >>> index.add(np.array([7, 3], np.uint64), np.array([70, 30], np.uint64))
        >>> numbers, is_known = index.find(np.array([3, 5, 7], np.uint64))
        >>> numbers.tolist(), is_known.tolist()
        ([30, 0, 70], [True, False, True])
    """

    def __init__(self) -> None:
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []  # hashes, ascending, and their numbers

    def __len__(self) -> int:
        return sum(len(hashes) for hashes, _ in self._runs)

    def add(self, hashes: np.ndarray, numbers: np.ndarray) -> None:
        """Adds entries: two arrays `(entries,)`, uint64."""
        if not len(hashes):
            return
        order = np.argsort(hashes, kind="stable")
        self._runs.append((hashes[order], numbers[order]))
        while len(self._runs) > 1 and len(self._runs[-2][0]) <= 2 * len(self._runs[-1][0]):
            _merge(*self._runs[-2], *self._runs.pop())

    def find(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The number of each hash, uint64, 0 if it has none, and whether it has one, bool; `(len(hashes),)` each."""
        numbers = np.zeros(len(hashes), np.uint64)
        is_known = np.zeros(len(hashes), bool)
        for run_hashes, run_numbers in self._runs:
            positions = run_hashes.searchsorted(hashes)
            positions[positions == len(run_hashes)] = 0  # any position: such a hash equals none
            is_hit = ~is_known & (run_hashes[positions] == hashes)
            numbers[is_hit] = run_numbers[positions[is_hit]]
            is_known |= is_hit
        return numbers, is_known


def _merge(
    hashes: np.ndarray,
    numbers: np.ndarray,
    new_hashes: np.ndarray,
    new_numbers: np.ndarray,
) -> None:
    """Merges a sorted run into another one, which grows in place."""
    count = len(hashes)
    hashes.resize(count + len(new_hashes), refcheck=False)
    numbers.resize(count + len(new_hashes), refcheck=False)

    # From the end: an entry moves up, to where no entry is that has not moved.
    remaining = len(new_hashes)
    for stop in range(count, 0, -ENTRIES_AT_ONCE):
        start = max(0, stop - ENTRIES_AT_ONCE)
        block_hashes = hashes[start:stop].copy()
        block_numbers = numbers[start:stop].copy()
        positions = np.arange(start, stop) + new_hashes.searchsorted(block_hashes)

        first = int(new_hashes.searchsorted(block_hashes[0]))
        behind = slice(first, remaining)  # new entries that come behind the first one of the block
        new_positions = np.arange(first, remaining) + start
        new_positions += block_hashes.searchsorted(new_hashes[behind], side="right")
        remaining = first

        hashes[positions] = block_hashes
        numbers[positions] = block_numbers
        hashes[new_positions] = new_hashes[behind]
        numbers[new_positions] = new_numbers[behind]

    hashes[:remaining] = new_hashes[:remaining]
    numbers[:remaining] = new_numbers[:remaining]
