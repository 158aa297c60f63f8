"""Scored pairs, best first, in bounded memory: sorted runs on disk, which are merged as they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from hf_xlsr.mining.work_folder import save_rows

PAIR = np.dtype([("score", np.float64), ("source", np.int64), ("target", np.int64)])
BYTES_PER_PAIR = 80  # memory of a pair while it is sorted
PAIRS_AT_ONCE = 1 << 15


def pairs_of(source: np.ndarray, target: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Pairs as records of type `PAIR`."""
    pairs = np.empty(len(score), PAIR)
    pairs["source"] = source
    pairs["target"] = target
    pairs["score"] = score
    return pairs


def best_first(blocks: Iterable[np.ndarray], memory: int, folder: Path | None) -> Iterator[np.ndarray]:
    """Sorts pairs: best score first, equal scores by lower source, then by lower target.

    Args:
        blocks: Different pairs, `PAIR`, in any order.
        memory: Bytes that sorting and merging may take.
        folder: Where sorted runs are kept; None sorts all pairs at once, in as much memory as they take.

    Returns:
        The pairs in their order, in blocks of at most `PAIRS_AT_ONCE`.
    """
    if folder is None:
        yield from _slices(_sorted(list(blocks)))
        return

    runs: list[np.ndarray] = []
    for number, run_blocks in enumerate(_run_blocks(blocks, max(1, memory // BYTES_PER_PAIR))):
        path = folder / f"run-{number}.npy"
        run = _sorted(run_blocks)
        save_rows(path, _slices(run), run.shape, PAIR)
        runs.append(np.load(path, mmap_mode="r"))
        del run  # before the next run fills the memory

    for block in _merged(runs, max(1, memory // (BYTES_PER_PAIR * max(1, len(runs))))):
        yield from _slices(block)


def _slices(pairs: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(pairs), PAIRS_AT_ONCE):
        yield pairs[start : start + PAIRS_AT_ONCE]


def _run_blocks(blocks: Iterable[np.ndarray], pairs: int) -> Iterator[list[np.ndarray]]:
    """The blocks of each run, which has at most that many pairs, or one block."""
    waiting: list[np.ndarray] = []
    count = 0
    for block in blocks:
        if waiting and count + len(block) > pairs:
            yield waiting
            waiting = []
            count = 0
        waiting.append(block)
        count += len(block)
    if waiting:
        yield waiting


def _sorted(blocks: list[np.ndarray]) -> np.ndarray:
    """The pairs of all blocks in order; the list is emptied, so that they are in memory once."""
    pairs = np.concatenate([np.empty(0, PAIR), *blocks])
    blocks.clear()
    return pairs.take(_order(pairs))


def _order(pairs: np.ndarray) -> np.ndarray:
    """What sorts the pairs: by score, and then the few of equal scores by their rows, which is slower."""
    order = np.argsort(-pairs["score"])
    scores = pairs["score"].take(order)
    is_equal = scores[1:] == scores[:-1]
    is_tied = np.zeros(len(pairs), bool)
    is_tied[1:] = is_equal
    is_tied[:-1] |= is_equal

    tied = order[is_tied]
    by_row = np.lexsort((pairs["target"][tied], pairs["source"][tied], -pairs["score"][tied]))
    order[is_tied] = tied[by_row]
    return order


def _merged(runs: Sequence[np.ndarray], pairs: int) -> Iterator[np.ndarray]:
    """Merges sorted runs, of each of which at most that many pairs are in memory."""
    starts = [0] * len(runs)
    while True:
        heads = [run[start : start + pairs] for run, start in zip(runs, starts, strict=True)]
        lasts = np.concatenate([np.empty(0, PAIR), *(head[-1:] for head in heads)])
        if not len(lasts):
            return

        # What follows a head comes after its last pair: up to the first of these, nothing is missing.
        limit = _sorted([lasts])[0]
        ready = []
        for number, head in enumerate(heads):
            count = int(_is_up_to(head, limit).sum())
            ready.append(head[:count])
            starts[number] += count
        yield _sorted(ready)


def _is_up_to(pairs: np.ndarray, limit: np.void) -> np.ndarray:
    """Whether each pair comes before a pair, or is it, `(pairs,)`, bool."""
    is_before_target = pairs["target"] <= limit["target"]
    is_before_source = pairs["source"] < limit["source"]
    is_before_source |= (pairs["source"] == limit["source"]) & is_before_target
    is_before: np.ndarray = pairs["score"] > limit["score"]
    is_before |= (pairs["score"] == limit["score"]) & is_before_source
    return is_before
