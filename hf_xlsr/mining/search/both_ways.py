"""Nearest neighbours of two sides in each other, both ways at once."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from typing_extensions import TypedDict

from hf_xlsr.mining.search.block_search import BlockSearch, Neighbours, Task, choose_sizes
from hf_xlsr.mining.search.storage import Workspace, trim
from hf_xlsr.mining.search.tiles import Filter
from hf_xlsr.mining.search.vectors import Survey, Vectors, identity, middle, survey
from hf_xlsr.utils.errors import XlsrError, nearest

METHODS = ("auto", "exact", "ivf")
LARGEST_EXACT = 2e13  # multiply-adds
RECALL_SAMPLE = 1000  # rows a side
VERSION = 1  # of what is kept in a folder
DONE = "done"
WAYS = ("forward", "backward")
DEFAULT_PROBES = 32


class SearchOptions(TypedDict, total=False):
    """The options of `neighbours_both_ways`, as other functions pass them on."""

    method: str
    memory: int | None
    device: str
    uncounted: int
    folder: str | Path | None
    cells: int | None
    probes: int | None
    show_progress_bar: bool


@dataclass(frozen=True)
class BothWays:
    """The nearest targets of each source and the nearest sources of each target, best first.

    Attributes:
        forward_similarities: `(n, k)`, float32: of each source with its nearest targets.
        forward_indices: `(n, k)`, int64: those targets' rows.
        backward_similarities: `(m, k)`, float32: of each target with its nearest sources.
        backward_indices: `(m, k)`, int64: those sources' rows.
        method: `exact` or `ivf`, whichever searched.
        recall: Share of the true neighbours that were found; 1.0 for `exact`, measured on a sample for `ivf`.
    """

    forward_similarities: np.ndarray
    forward_indices: np.ndarray
    backward_similarities: np.ndarray
    backward_indices: np.ndarray
    method: str
    recall: float


def neighbours_both_ways(
    source: np.ndarray,
    target: np.ndarray,
    k: int = 4,
    *,
    method: str = "auto",
    memory: int | None = None,
    device: str = "cpu",
    uncounted: int = 0,
    folder: str | Path | None = None,
    cells: int | None = None,
    probes: int | None = None,
    show_progress_bar: bool = False,
) -> BothWays:
    """The `k` nearest on the other side of every row, by inner product (cosine, for vectors of length 1).

    `exact` computes every block of similarities once and takes the best of its rows and of its columns; its result is
    that of two calls of `nearest_neighbours`, to the last bit. Where the processor multiplies bfloat16 in hardware the
    blocks are computed in that, which only picks the candidates: how far a product can be off is bounded, candidates
    that come so near are scored in float64, and a row with more of them than are kept is searched again.

    `ivf` sorts both sides into cells by k-means and compares every row with the `probes` cells nearest to it: the
    whole vectors, by matrix products, so that there is no loss but that of cells which were not looked into. The
    share of true neighbours found is measured on 1,000 rows a side and given as `recall`. Rows whose cells hold fewer
    than `k` vectors are searched exactly.

    `auto` is `exact` up to 2e13 multiply-adds (rows times rows times width: some 230,000 sentences a side at width
    384) and `ivf` above.

    Args:
        source: `(n, width)`, of any real type, in memory or memory-mapped; converted block by block, never whole.
        target: `(m, width)`, likewise.
        k: Neighbours of each row; cut to the number of rows on the other side.
        method: `auto`, `exact` or `ivf`.
        memory: The most bytes that the process may have resident meanwhile, libraries and all (about 380 MiB once this
            package is imported); block sizes follow from it, mapped inputs are let go of as they are read, and what
            grows with the sides goes to files where it does not fit. By default half of what the machine can give.
        device: Where similarities are computed, e.g. `cuda`.
        uncounted: Bytes of what the process has resident already that `memory` is not for, such as an encoder's.
        folder: Keeps finished blocks, so that a later call with the same vectors goes on from there, and the result,
            memory-mapped; nothing is kept by default. Several searches may share a folder. Vectors in memory are known
            again by their bytes, mapped ones by name, size and time of their file.
        cells: Cells of either side, for `ivf`; about one for 1,000 vectors by default.
        probes: Cells that a row is compared with, for `ivf`; 32 by default.
        show_progress_bar: Show one, in rows a second.

    Returns:
        The neighbours both ways, without columns where the other side is empty.

    Raises:
        XlsrError: an option is wrong, the sides do not fit together, a row holds NaN, infinity or only zeros, the
            memory does not suffice (says what would), or the disk is full.

    Relations:
        FAISS searches twice, once for each direction; its IVF takes queries one at a time, and IVF-PQ compares
        quantised vectors.

    Example:
        >>> both = neighbours_both_ways(np.eye(3), np.eye(3)[[2, 0, 1]], k=1)
        >>> both.forward_indices.ravel().tolist(), both.backward_indices.ravel().tolist()
        ([1, 2, 0], [2, 0, 1])
    """
    if method not in METHODS:
        raise XlsrError(f"method is '{method}'; {nearest(method, METHODS)}")
    for name, number in (("k", k), ("cells", cells), ("probes", probes)):
        if number is not None and number < 1:
            raise XlsrError(f"{name} is {number}; give 1 or more.")
    matrices = as_matrix(source, "source"), as_matrix(target, "target")
    counts = len(matrices[0]), len(matrices[1])
    width = matrices[0].shape[1]
    if width != matrices[1].shape[1]:
        raise XlsrError(f"source is {width} wide and target {matrices[1].shape[1]}; encode both with one model.")
    if not min(counts):
        forward, backward = (
            Neighbours(np.empty((count, 0), np.float32), np.empty((count, 0), np.int64)) for count in counts
        )
        return BothWays(*forward, *backward, method="exact", recall=1.0)
    itemsize = max(map(copied_itemsize, matrices))
    task = _task(counts, width, itemsize, k, method, cells, probes)
    filter_ = Filter(device)
    sizes = choose_sizes(task, memory, filter_, uncounted)
    if folder is not None:
        kind = task.method, task.cells, task.probes, filter_.precision
        settings = (VERSION, k, *kind, *map(identity, matrices))
        folder = Path(folder) / f"neighbours-{hashlib.blake2b(repr(settings).encode(), digest_size=8).hexdigest()}"
    workspace = Workspace(folder, sizes.in_files)
    done = workspace.noted(DONE)
    surveys = None if done else _survey_both(matrices, k, filter_)
    trim()
    results = (
        _results(workspace, WAYS[0], counts[0], min(k, counts[1])),
        _results(workspace, WAYS[1], counts[1], min(k, counts[0])),
    )
    if surveys is not None:
        sides = _without(matrices[0], surveys[0].surplus), _without(matrices[1], surveys[1].surplus)
        search = BlockSearch(sides, surveys, results, sizes, filter_, workspace, task.cells, show_progress_bar)
        if task.method == "exact":
            search.exact()
        else:
            search.by_cells(task.probes)
        done = {"recall": search.recall(RECALL_SAMPLE) if task.method == "ivf" else 1.0}
        for found, result in zip(surveys, results, strict=True):
            for array in result:
                array[found.surplus] = array[found.originals]
        workspace.note(DONE, done)
        workspace.clear([DONE, *(f"{way}_{part}.npy" for way in WAYS for part in Neighbours._fields)])
    return BothWays(*results[0], *results[1], method=task.method, recall=done["recall"])


def check_memory(
    counts: tuple[int, int],
    width: int,
    k: int,
    *,
    itemsize: int,
    method: str,
    memory: int | None,
    device: str,
    uncounted: int = 0,
) -> None:
    """Refuses a budget that `neighbours_both_ways` would refuse, before there are vectors.

    Args:
        counts: Rows of source and target.
        width: Of their vectors.
        k: As in `neighbours_both_ways`; so are the rest.
        itemsize: Bytes a number of the copies that it makes, see `copied_itemsize`.
        method: `auto`, `exact` or `ivf`.
        memory: The most bytes that the process may have resident.
        device: Where similarities will be computed.
        uncounted: Bytes resident now that `memory` is not for.

    Raises:
        XlsrError: the memory does not suffice (says what would), or there is no such device.
    """
    choose_sizes(_task(counts, width, itemsize, k, method), memory, Filter(device), uncounted)


def _task(
    counts: tuple[int, int],
    width: int,
    itemsize: int,
    k: int,
    method: str,
    cells: int | None = None,
    probes: int | None = None,
) -> Task:
    if method == "auto":
        method = "ivf" if counts[0] * counts[1] * width > LARGEST_EXACT else "exact"
    cells = cells or 2 ** round(math.log2(max(1.0, min(counts) / 1000)))
    return Task(*counts, width, itemsize, k, method, cells, probes or DEFAULT_PROBES)


def copied_itemsize(matrix: np.ndarray) -> int:
    """Bytes a number of the copies that a search makes of a matrix."""
    return 2 if matrix.dtype == np.float16 else 4


def _results(workspace: Workspace, way: str, rows: int, k: int) -> Neighbours:
    return Neighbours(
        workspace.array(f"{way}_similarities", (rows, k), np.float32, kept=True),
        workspace.array(f"{way}_indices", (rows, k), np.int64, kept=True),
    )


def _survey_both(matrices: tuple[np.ndarray, np.ndarray], k: int, filter_: Filter) -> tuple[Survey, Survey]:
    source, target = middle(matrices[0]), middle(matrices[1])
    return (
        survey(matrices[0], "source", k, (source, target), filter_.rounded),
        survey(matrices[1], "target", k, (target, source), filter_.rounded),
    )


def as_matrix(vectors: np.ndarray, name: str) -> np.ndarray:
    """Vectors as an array; a memory map stays one, so that it is not read as a whole.

    Args:
        vectors: `(rows, width)`, of any real type.
        name: What messages call them.

    Raises:
        XlsrError: they are no matrix, or not of real numbers.
    """
    matrix = np.asanyarray(vectors)
    if matrix.dtype.kind not in "fiub":
        raise XlsrError(f"{name} holds {matrix.dtype}; give a matrix of real numbers.")
    if matrix.ndim != 2:
        raise XlsrError(f"{name} has shape {matrix.shape}; give a matrix with one row a sentence.")
    return matrix


def _without(matrix: np.ndarray, surplus: np.ndarray) -> Vectors:
    if not surplus.size:
        return Vectors(matrix)
    kept = np.ones(len(matrix), bool)
    kept[surplus] = False
    return Vectors(matrix, np.flatnonzero(kept))
