"""Nearest neighbours by inner product, in one direction or both, with ties that do not depend on the machine."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hf_xlsr.mining.search.block_search import RESULTS, BlockSearch, Neighbours, SearchSize, choose_sizes
from hf_xlsr.mining.search.int8_rows import is_int8
from hf_xlsr.mining.search.spans import SpanTasks
from hf_xlsr.mining.search.tiles import Filter
from hf_xlsr.mining.search.vectors import Vectors, check_widths, in_file
from hf_xlsr.mining.work_folder import Stage
from hf_xlsr.utils.errors import XlsrError, require_choice, require_positive
from hf_xlsr.utils.hashing import array_hash
from hf_xlsr.utils.tasks import InProcess, LocalPool, Runner
from hf_xlsr.utils.vectors import as_vectors

METHODS = ("auto", "exact", "ivf")
LARGEST_EXACT = 2e13  # multiply-adds
VERSION = 4  # of the files in a folder
DEFAULT_PROBES = 32
QUERIES_AT_ONCE = 1024


def nearest_neighbours(queries: np.ndarray, candidates: np.ndarray, k: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The `k` candidates of largest inner product for each query (cosine, for vectors of length 1).

    Products in float32 or bfloat16 pick the candidates, which are scored again in float64 and rounded to float32.
    Results therefore depend neither on the other queries nor on the order of the candidates, and a tie, meaning equal
    float32 similarities, goes to the lowest index.

    Returns:
        Similarities, float32, and candidate indices, int64, both `(n, min(k, m))` for `n` queries and `m` candidates,
        best first.

    Examples:
        >>> similarities, indices = nearest_neighbours(np.eye(2), np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]), k=2)
        >>> indices.tolist()
        [[1, 2], [0, 1]]
    """
    matrices = (as_vectors(queries, "queries"), as_vectors(candidates, "candidates"))
    require_positive("k", k)
    require_positive("number of candidates", len(candidates))
    check_widths(*matrices)

    k = min(k, len(candidates))
    neighbours = Neighbours.empty(len(queries), k)
    if len(queries):
        search = BlockSearch(matrices, k, (QUERIES_AT_ONCE, QUERIES_AT_ONCE), Filter())
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            rows = slice(start, start + QUERIES_AT_ONCE)
            neighbours.store(rows, search.nearest(0, matrices[0][rows]))
    return neighbours.similarities, neighbours.indices


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

    @property
    def figures(self) -> dict[str, Any]:
        """How the search was done, for reports."""
        return {"method": self.method, "recall": self.recall, "recall_margin": self.recall_margin}

    def means(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean similarity of each source and of each target with its neighbours, float64."""
        source_means = self.forward_similarities.mean(axis=1, dtype=np.float64)
        target_means = self.backward_similarities.mean(axis=1, dtype=np.float64)
        return source_means, target_means


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
    runner: Runner | None = None,
) -> BothWays:
    """The `k` nearest rows on the other side for every row, by inner product (cosine, for vectors of length 1).

    `exact` computes every block of similarities once, for both directions; its result equals two calls of
    `nearest_neighbours`, bit for bit. On a CPU with bfloat16 in hardware, blocks in bfloat16 pick the candidates: the
    error is bounded, all candidates within it are scored in float64, and rows with too many are searched again.

    `ivf` sorts both sides into cells by k-means and compares every row with the vectors of the `probes` nearest cells.
    Only neighbours in other cells are missed. Their share is measured on 1,000 rows of each side and returned as
    `recall`. Rows whose cells hold fewer than `k` vectors are searched exactly.

    `auto` is `exact` up to 2e13 multiply-adds (some 230,000 sentences a side at width 384) and `ivf` above.

    Args:
        source: `(n, width)`, of any real type, or `int8_rows`, in memory or memory-mapped; converted block by block.
        target: `(m, width)`, likewise.
        k: Neighbours of each row; at most the number of rows on the other side.
        method: `auto`, `exact` or `ivf`.
        memory: Bytes that each process of the search may allocate; together half of the machine's available memory if
            None. Memory-mapped inputs do not count, nor what grows with the sides if there is a `folder` for it.
        device: Where similarities are computed, e.g. `cuda`.
        folder: Saves finished tasks, so that a later call with the same vectors resumes, and the result,
            memory-mapped. Several searches may share a folder.
        cells: Cells of each side, for `ivf`; about one for 1,000 vectors by default.
        probes: Cells that a row is compared with, for `ivf`; 32 by default.
        recall: For `ivf`: doubles `probes` until 1,000 random rows of each side find this share of their neighbours. The
            recall of the result is measured on a second sample.
        runner: What runs the tasks of the search, this process by default: a `LocalPool` or a `RayRunner`, on machines of
            one kind that share the folder. The result is the same.

    Returns:
        The neighbours in both directions, without columns if the other side is empty.

    Examples:
        >>> both = neighbours_both_ways(np.eye(3), np.eye(3)[[2, 0, 1]], k=1)
        >>> both.forward_indices.ravel().tolist(), both.backward_indices.ravel().tolist()
        ([1, 2, 0], [2, 0, 1])
    """
    require_choice("method", method, METHODS)
    require_positive("k", k)
    matrices = (as_matrix(source, "source"), as_matrix(target, "target"))
    check_widths(*matrices)
    sides = [Vectors(matrix) for matrix in matrices]
    width = sides[0].width
    source_count = len(matrices[0])
    target_count = len(matrices[1])
    smaller_count = min(source_count, target_count)
    if not smaller_count:
        return BothWays(
            *Neighbours.empty(source_count, 0), *Neighbours.empty(target_count, 0), method="exact", recall=1.0
        )

    k = min(k, max(source_count, target_count))  # more would only take memory
    method = chosen_method(method, source_count, target_count, width)
    cells = cells or default_cells(smaller_count)
    probes = probes or DEFAULT_PROBES
    filter_ = Filter(device)
    itemsize = max(side.itemsize for side in sides)
    size = SearchSize(
        (source_count, target_count),
        width,
        itemsize,
        k,
        k + filter_.spare,
        method,
        cells,
        probes,
    )
    if memory is None:
        memory = psutil.virtual_memory().available // 2
        if isinstance(runner, LocalPool):
            memory //= runner.num_proc
    sizes = choose_sizes(size, memory, folder is not None)

    if folder is not None:
        settings = repr((VERSION, k, method, cells, probes, recall, filter_.precision, *map(array_hash, matrices)))
        digest = hashlib.sha256(settings.encode()).hexdigest()
        folder = Path(os.path.abspath(folder)) / f"neighbours-{digest[:16]}"
    stage = Stage(folder)
    tasks = SpanTasks(stage, runner, show_progress_bar)
    if folder is None and not isinstance(tasks.runner, InProcess):
        raise XlsrError("`folder` is required by several processes: they share their results in it.")

    # Before the search, as its blocks are smaller than the arrays.
    forward = _stored_neighbours(stage, RESULTS[:2], (source_count, min(k, target_count)))
    backward = _stored_neighbours(stage, RESULTS[2:], (target_count, min(k, source_count)))
    if not stage.result:
        if tasks.is_shared:
            matrices = (
                in_file(matrices[0], tasks.folder / "source.npy"),
                in_file(matrices[1], tasks.folder / "target.npy"),
            )
        search = BlockSearch(matrices, k, sizes, filter_, cells, show_progress_bar and folder is None)
        search.run(method, (forward, backward), probes, recall, tasks)
    assert stage.result is not None
    return BothWays(*forward, *backward, method, stage.result["recall"], stage.result["margin"])


def chosen_method(method: str, source_count: int, target_count: int, width: int) -> str:
    """`exact` or `ivf`, by the number of multiply-adds if the method is `auto`."""
    if method != "auto":
        return method
    return "ivf" if source_count * target_count * width > LARGEST_EXACT else "exact"


def default_cells(smaller_count: int) -> int:
    """Cells of each side, about one for 1,000 vectors of the smaller one."""
    return int(2 ** round(math.log2(max(1.0, smaller_count / 1000))))


def _stored_neighbours(stage: Stage, names: Sequence[str], shape: tuple[int, int]) -> Neighbours:
    similarities, indices = names
    return Neighbours(stage.array(similarities, shape, np.float32), stage.array(indices, shape, np.int64))


def as_matrix(vectors: np.ndarray, name: str) -> np.ndarray:
    """Vectors of any real type as an array, `(rows, width)`, or `int8_rows`, memory-mapped if they are."""
    matrix = np.asanyarray(vectors)
    if is_int8(matrix):
        return matrix
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiub":
        raise XlsrError(
            f"`{name}` must be a matrix of real numbers with one row per sentence, got {matrix.dtype} {matrix.shape}."
        )
    return matrix
