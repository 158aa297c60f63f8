"""Nearest neighbours of two sides in each other, in both directions at once."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from typing_extensions import TypedDict

from hf_xlsr.mining.search.block_search import BlockSearch, Neighbours, Task, choose_sizes
from hf_xlsr.mining.search.neighbours import check_widths
from hf_xlsr.mining.search.storage import Workspace
from hf_xlsr.mining.search.tiles import Filter
from hf_xlsr.mining.search.vectors import Vectors, VectorStats, middle, scan
from hf_xlsr.mining.work_folder import Stage
from hf_xlsr.utils.errors import XlsrError, require_choice, require_positive
from hf_xlsr.utils.hashing import array_hash

METHODS = ("auto", "exact", "ivf")
LARGEST_EXACT = 2e13  # multiply-adds
VERSION = 3  # of the files in a folder
WAYS = ("forward", "backward")
DEFAULT_PROBES = 32


class SearchOptions(TypedDict, total=False):
    """Options of `neighbours_both_ways`, for functions that pass them on."""

    method: str
    memory: int | None
    device: str
    folder: str | Path | None
    cells: int | None
    probes: int | None
    recall: float | None
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
        recall_margin: Half the width of its 95 % interval.
    """

    forward_similarities: np.ndarray
    forward_indices: np.ndarray
    backward_similarities: np.ndarray
    backward_indices: np.ndarray
    method: str
    recall: float
    recall_margin: float = 0.0


def neighbours_both_ways(
    source: np.ndarray,
    target: np.ndarray,
    k: int = 4,
    *,
    method: str = "auto",
    memory: int | None = None,
    device: str = "cpu",
    folder: str | Path | None = None,
    cells: int | None = None,
    probes: int | None = None,
    recall: float | None = None,
    show_progress_bar: bool = False,
) -> BothWays:
    """The `k` nearest rows on the other side for every row, by inner product (cosine, for vectors of length 1).

    `exact` computes every block of similarities once, for both directions; its result equals two calls of
    `nearest_neighbours`, bit for bit. If the CPU multiplies bfloat16 in hardware, blocks are computed in bfloat16,
    which only picks the candidates: its error is bounded, all candidates within the error are scored in float64, and a
    row with more of them than a list holds is searched again.

    `ivf` sorts both sides into cells by k-means and compares every row with the vectors of the `probes` nearest cells.
    Vectors are not quantised: only neighbours in other cells are missed. Their share is measured on 1,000 rows of each
    side and returned as `recall`. Rows whose cells hold fewer than `k` vectors are searched exactly.

    `auto` is `exact` up to 2e13 multiply-adds (rows times rows times width: some 230,000 sentences a side at width
    384) and `ivf` above.

    Args:
        source: `(n, width)`, of any real type, in memory or memory-mapped; converted block by block.
        target: `(m, width)`, likewise.
        k: Neighbours of each row; at most the number of rows on the other side.
        method: `auto`, `exact` or `ivf`.
        memory: Bytes that the search may allocate; half of the machine's available memory if None. Block sizes follow
            from it, and what grows with the sides goes to files if it does not fit. Memory-mapped inputs do not count.
        device: Where similarities are computed, e.g. `cuda`.
        folder: Saves finished blocks, so that a later call with the same vectors resumes, and the result,
            memory-mapped. Several searches may share a folder.
        cells: Cells of each side, for `ivf`; about one for 1,000 vectors by default.
        probes: Cells that a row is compared with, for `ivf`; 32 by default.
        recall: For `ivf`: doubles `probes` until 1,000 random rows of each side find this share of their neighbours. The
            recall of the result is measured on a second sample.
        show_progress_bar: Show one, in rows a second.

    Returns:
        The neighbours in both directions, without columns if the other side is empty.

    Examples:
        >>> both = neighbours_both_ways(np.eye(3), np.eye(3)[[2, 0, 1]], k=1)
        >>> both.forward_indices.ravel().tolist(), both.backward_indices.ravel().tolist()
        ([1, 2, 0], [2, 0, 1])
    """
    require_choice("method", method, METHODS)
    require_positive("k", k)
    matrices = as_matrix(source, "source"), as_matrix(target, "target")
    counts = len(matrices[0]), len(matrices[1])
    check_widths(*matrices)
    if not min(counts):
        forward, backward = (
            Neighbours(np.empty((count, 0), np.float32), np.empty((count, 0), np.int64)) for count in counts
        )
        return BothWays(*forward, *backward, method="exact", recall=1.0)
    itemsize = max(2 if matrix.dtype == np.float16 else 4 for matrix in matrices)
    width = matrices[0].shape[1]
    if method == "auto":
        method = "ivf" if counts[0] * counts[1] * width > LARGEST_EXACT else "exact"
    cells = cells or 2 ** round(math.log2(max(1.0, min(counts) / 1000)))
    task = Task(*counts, width, itemsize, k, method, cells, probes or DEFAULT_PROBES)
    filter_ = Filter(device)
    sizes = choose_sizes(task, memory, filter_)
    if folder is not None:
        kind = task.method, task.cells, task.probes, recall, filter_.precision
        settings = repr((VERSION, k, *kind, *map(array_hash, matrices)))
        folder = Path(folder) / f"neighbours-{hashlib.sha256(settings.encode()).hexdigest()[:16]}"
    stage = Stage(folder)
    workspace = Workspace(stage, sizes.in_files)
    stats: list[VectorStats] = []
    if not stage.result:
        middles = [middle(matrix) for matrix in matrices]
        stats = [
            scan(matrix, name, k, (own, other), filter_.rounded)
            for matrix, name, own, other in zip(matrices, ("source", "target"), middles, middles[::-1], strict=True)
        ]
    results = []
    for way, count in zip(WAYS, counts, strict=True):
        shape = count, min(k, sum(counts) - count)
        kinds = {"similarities": np.float32, "indices": np.int64}
        arrays = (workspace.array(f"{way}_{part}", shape, kind, kept=True) for part, kind in kinds.items())
        results.append(Neighbours(*arrays))
    if stats:
        sides = [_without(matrix, found.surplus) for matrix, found in zip(matrices, stats, strict=True)]
        search = BlockSearch(sides, stats, results, sizes, filter_, workspace, task.cells, show_progress_bar)
        if task.method == "exact":
            search.exact()
        else:
            search.by_cells(task.probes, recall)
        measured, margin = search.recall() if task.method == "ivf" else (1.0, 0.0)
        for found, result in zip(stats, results, strict=True):
            for array in result:
                array[found.surplus] = array[found.originals]
        stage.finish(recall=measured, margin=margin)
        workspace.clear([f"{way}_{part}" for way in WAYS for part in Neighbours._fields])
    told = stage.result or {}
    return BothWays(*results[0], *results[1], task.method, told["recall"], told["margin"])


def as_matrix(vectors: np.ndarray, name: str) -> np.ndarray:
    """Vectors of any real type as an array, `(rows, width)`, memory-mapped if they are."""
    matrix = np.asanyarray(vectors)
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiub":
        raise XlsrError(
            f"`{name}` must be a matrix of real numbers with one row per sentence, got {matrix.dtype} {matrix.shape}."
        )
    return matrix


def _without(matrix: np.ndarray, surplus: np.ndarray) -> Vectors:
    if not surplus.size:
        return Vectors(matrix)
    kept = np.ones(len(matrix), bool)
    kept[surplus] = False
    return Vectors(matrix, np.flatnonzero(kept))
