"""Approximate search in cells of near vectors, for sides that are too large to compare all sources with all targets.

An inverted file like FAISS' IVF, but the vectors of both sides are sorted by cell, and the queries that probe a cell are
compared with it in one matrix product. The vectors are as they were stored, and files are read in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import isqrt
from typing import Any

import numpy as np
import torch

from hf_xlsr.encoders.encoding import unit_length
from hf_xlsr.mining.search.int8_rows import unit_rows
from hf_xlsr.mining.search.spans import SpanTasks, array_of
from hf_xlsr.mining.search.tiles import ROUNDING, Tile, TopK
from hf_xlsr.mining.search.vectors import (
    MatrixFile,
    Vectors,
    as_tensor,
    convert,
    in_file,
    opened_array,
    portable,
    sample_rows,
)
from hf_xlsr.mining.work_folder import Stage, save_rows
from hf_xlsr.utils.devices import product_precision

SEED = 1
POINTS_PER_CELL = 64  # of the sample that centroids are trained on
ROUNDS = 10
TWO_LEVELS = 1 << 16  # so many centroids are searched in cells of their own
GROUPS_PROBED = 16
QUERIES_GROUPED = 1 << 14
ROWS_ASSIGNED = 1 << 16  # of a task, about
ROWS_ORDERED = 1 << 20
NUMBERS_COPIED = 1 << 23  # of a task that sorts


class Centroids:
    """Finds the nearest centroids of vectors: of all, or of many only in the nearest groups of centroids.

    `used` marks the centroids that may be found, bool; all if None. `stage` keeps the groups, so that other processes
    do not compute them again.
    """

    def __init__(
        self,
        vectors: np.ndarray,
        tile: Tile,
        used: np.ndarray | None = None,
        stage: Stage | None = None,
    ) -> None:
        self.arguments = (vectors, tile, used, stage)
        self.tile = tile
        self.numbers = np.arange(len(vectors)) if used is None else np.flatnonzero(used)
        vectors = vectors[self.numbers]
        count = len(vectors)
        self.vectors = as_tensor(vectors, tile.device)

        self.groups: Cells | None = None
        self.step = tile.height(count)  # queries at a time
        if count >= TWO_LEVELS:
            self.groups = lay_out(Vectors(vectors), "groups", isqrt(count), SpanTasks(stage or Stage(None)), tile)
            self.step = QUERIES_GROUPED

    def __reduce__(self) -> tuple[Any, ...]:
        vectors, *others = self.arguments
        return _open_centroids, (portable(vectors), *others)

    def nearest(self, queries: torch.Tensor, count: int) -> np.ndarray:
        """`(len(queries), count)` numbers of centroids; above all numbers where the groups have fewer."""
        if self.groups is None:
            products = self.tile.product(queries, self.vectors)
            products = products[: len(queries), : len(self.vectors)]
            best = products.argmax(1, keepdim=True) if count == 1 else products.topk(count, 1, sorted=False).indices
            return np.take(self.numbers, best.cpu().numpy())

        lists = TopK.empty(len(queries), count, count, ROUNDING, queries.device)
        # Twice as many groups as hold `count` centroids on average.
        probes = max(GROUPS_PROBED, 2 * count * len(self.groups) // len(self.vectors))
        probe_cells(queries, self.groups, probes, lists, self.tile)

        values, candidates = lists.arrays()
        numbers: np.ndarray = self.numbers[self.groups.vectors.labels(candidates)]
        numbers[values == -np.inf] = self.numbers[-1] + 1
        return numbers


def _open_centroids(
    vectors: MatrixFile | np.ndarray,
    tile: Tile,
    used: np.ndarray | None,
    stage: Stage | None,
) -> Centroids:
    return Centroids(opened_array(vectors), tile, used, stage)


def train_centroids(
    side: Vectors,
    name: str,
    cells: int,
    tasks: SpanTasks,
    tile: Tile,
) -> np.ndarray:
    """`(cells, width)` centroids of length 1, float32, by spherical k-means on a random sample of the side."""
    stage = tasks.stage
    rng = np.random.default_rng(SEED)
    rows = sample_rows(rng, len(side), POINTS_PER_CELL * cells)
    sample = Vectors(stage.array(f"{name}-sample", side.shape(len(rows)), side.kind))
    copy_rows(side, rows, sample.matrix)

    centroids = sample[sample_rows(rng, len(rows), cells)]
    for number in range(ROUNDS):
        nearest = _nearest_cells(sample, centroids, f"{name}-round-{number}", tasks, tile, resumable=False)
        sums = np.zeros((cells, side.width))
        for start in range(0, len(sample), sample.step):
            block = sample.block(start, start + sample.step)
            block_cells = nearest[start : start + len(block)]
            order = np.argsort(block_cells, kind="stable")
            numbers, first = np.unique(block_cells[order], return_index=True)
            sums[numbers] += np.add.reduceat(block[order], first, axis=0, dtype=np.float64)

        # A cell that nothing is near starts again from a random vector.
        empty = np.flatnonzero(~sums.any(axis=1))
        centroids = unit_length(sums).astype(np.float32)
        centroids[empty] = sample[sample_rows(rng, len(rows), len(empty))]
    return centroids


def _nearest_cells(
    side: Vectors,
    centroids: np.ndarray,
    name: str,
    tasks: SpanTasks,
    tile: Tile,
    *,
    resumable: bool = True,
) -> np.ndarray:
    """The nearest centroid of each vector, `(len(side),)`, int32."""
    if tasks.is_shared:
        centroids = in_file(centroids, tasks.folder / f"{name}.npy")
    search = Centroids(centroids, tile, stage=tasks.stage.inner(f"{name}-groups"))
    step = search.step if search.groups else min(search.step, side.step)

    nearest = np.empty(len(side), np.int32)  # of a sample; those of a whole side are in a file
    if resumable:
        nearest = tasks.stage.array(f"{name}-numbers", (len(side),), np.int32)
    for start, part in tasks.run(
        name, partial(_assigned, side, search, step), len(side), ROWS_ASSIGNED, resumable=resumable
    ):
        cells = array_of(part, "cells")
        nearest[start : start + len(cells)] = cells
    return nearest


def _assigned(side: Vectors, search: Centroids, step: int, start: int, stop: int) -> dict[str, np.ndarray]:
    """The nearest centroids of the vectors of a span."""
    cells = np.empty(stop - start, np.int32)
    with product_precision(search.tile.filter.precision):
        for first in range(start, stop, step):
            block = side.block(first, min(first + step, stop))
            nearest = search.nearest(as_tensor(block, search.tile.device), 1)[:, 0]
            cells[first - start : first - start + len(block)] = nearest
    return {"cells": cells}


def _fill_order(order: np.ndarray, cell: np.ndarray, starts: np.ndarray) -> None:
    """Writes the rows by cell, those of a cell ascending; `starts` are the positions at which cells begin."""
    following = starts[:-1].copy()
    for start in range(0, len(cell), ROWS_ORDERED):
        block = cell[start : start + ROWS_ORDERED]
        by_cell = np.argsort(block, kind="stable")
        numbers, first, counts = np.unique(block[by_cell], return_index=True, return_counts=True)
        rank = np.arange(len(block)) - np.repeat(first, counts)
        order[np.repeat(following[numbers], counts) + rank] = start + by_cell
        following[numbers] += counts


def copy_rows(side: Vectors, rows: np.ndarray, matrix: np.ndarray) -> None:
    """Copies the vectors at some positions into a matrix, block by block."""
    for start in range(0, len(rows), side.step):
        block = slice(start, start + side.step)
        convert(side.rows(rows[block]), matrix[block])


def _copied(side: Vectors, order: MatrixFile | np.ndarray, start: int, stop: int) -> dict[str, np.ndarray]:
    """The vectors of a span of the sorted side."""
    rows = opened_array(order)[start:stop]
    vectors: np.ndarray = np.empty(side.shape(stop - start), side.kind)
    copy_rows(side, rows, vectors)
    return {"vectors": vectors}


@dataclass(frozen=True)
class Cells:
    """A side sorted by cell: cell `i` has the vectors from `starts[i]` to `starts[i + 1]`."""

    vectors: Vectors
    starts: np.ndarray
    centroids: Centroids  # of the cells that are not empty

    def __len__(self) -> int:
        return len(self.starts) - 1


def lay_out(side: Vectors, name: str, cells: int, tasks: SpanTasks, tile: Tile) -> Cells:
    """Sorts a side into at most `cells` cells, or opens the result of an earlier process in the stage."""
    stage = tasks.stage
    cells = min(cells, len(side))
    centroids = stage.array(f"{name}-centroids", (cells, side.width), np.float32)
    order = stage.array(f"{name}-order", (len(side),), np.int32)
    starts = stage.array(f"{name}-starts", (cells + 1,), np.int64)

    shape = side.shape(len(side))
    sorted_name = f"{name}-vectors"
    if not tasks.is_shared:
        matrix = stage.array(sorted_name, shape, side.kind)
    finished = f"{name}-cells"
    if not stage.state.get(finished):
        # Neither depends on what is laid out already: a later call after a stop begins here.
        trained = f"{name}-trained"
        if not stage.state.get(trained):
            centroids[:] = train_centroids(side, name, cells, tasks, tile)
            stage.update(**{trained: cells})
        cell = _nearest_cells(side, centroids, f"{name}-assigned", tasks, tile)

        starts[1:] = np.cumsum(np.bincount(cell, minlength=cells))
        _fill_order(order, cell, starts)
        if tasks.is_shared:
            rows = max(1, NUMBERS_COPIED // side.width)
            work = partial(_copied, side, portable(order))
            blocks = (array_of(part, "vectors") for _, part in tasks.run(f"{name}-sorted", work, len(side), rows))
            save_rows(tasks.folder.parent / f"{sorted_name}.npy", blocks, shape, side.kind)
        else:
            copy_rows(side, order, matrix)
        stage.update(**{finished: cells})

    if tasks.is_shared:
        matrix = stage.array(sorted_name, shape, side.kind)
    vectors = Vectors(matrix, labels=side.labels(order))
    is_filled = np.diff(starts) > 0
    return Cells(vectors, np.array(starts), Centroids(centroids, tile, is_filled, stage.inner(f"{name}-groups")))


def probe_cells(
    queries: torch.Tensor,
    cells: Cells,
    probes: int,
    best: TopK,
    tile: Tile,
) -> None:
    """Compares queries with the vectors of their `probes` nearest cells that are not empty, and updates their lists.

    The work goes cell by cell, with all queries that probe it, so that each cell is read once.
    """
    probing, bounds = _queries_by_cell(queries, cells, probes)
    height = tile.height(tile.size)
    for cell in np.flatnonzero(np.diff(bounds)):
        cell_queries = as_tensor(probing[bounds[cell] : bounds[cell + 1]], tile.device)
        cell_start, cell_stop = cells.starts[cell : cell + 2].tolist()
        for start in range(cell_start, cell_stop, height):
            stop = min(start + height, cell_stop)
            candidates = as_tensor(cells.vectors.block(start, stop), tile.device)
            for first in range(0, len(cell_queries), tile.size):
                block_queries = cell_queries[first : first + tile.size]
                products = tile.product(float_rows(queries[block_queries]), candidates)
                best.update(block_queries, products, start, by_row=True)


def float_rows(queries: torch.Tensor) -> torch.Tensor:
    """Stored vectors as float32; int8 are the numbers of `int8_rows`."""
    return unit_rows(queries) if queries.dtype == torch.int8 else queries.float()


def _queries_by_cell(queries: torch.Tensor, cells: Cells, probes: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries sorted by the cells that they probe, and bounds: those of a cell are from `bounds[cell]` to the next."""
    centroids = cells.centroids
    probes = min(probes, len(centroids.vectors))
    total = len(cells)
    kind = np.uint16 if total < 2**16 else np.int64  # uint16 is sorted by radix
    probed = np.empty((len(queries), probes), kind)
    for start in range(0, len(queries), centroids.step):
        block = slice(start, start + centroids.step)
        probed[block] = centroids.nearest(float_rows(queries[block]), probes)

    counts = np.bincount(probed.ravel(), minlength=total)[:total]
    probing = np.argsort(probed, axis=None, kind="stable")
    probing //= probes  # from the number of a probe to that of its query
    return probing, np.append(0, np.cumsum(counts))
