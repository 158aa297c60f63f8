"""Approximate search in cells of near vectors, for sides that are too large to compare all sources with all targets.

An inverted file like FAISS' IVF, but the vectors of both sides are sorted by cell, and the queries that probe a cell are
compared with it in one matrix product. Vectors are not quantised, and files are read in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

import numpy as np
import torch

from hf_xlsr.mining.search.tiles import ROUNDING, Tile, TopK
from hf_xlsr.mining.search.vectors import Vectors, as_tensor, convert
from hf_xlsr.mining.work_folder import Stage

SEED = 1
POINTS_PER_CELL = 64  # of the sample that centroids are trained on
ROUNDS = 10
TWO_LEVELS = 1 << 16  # so many centroids are searched in cells of their own
GROUPS_PROBED, QUERIES_GROUPED = 16, 1 << 14


class Centroids:
    """Finds the nearest centroids of vectors: of all, or of many only in the nearest groups of centroids."""

    def __init__(self, vectors: np.ndarray, tile: Tile, used: np.ndarray | None = None) -> None:
        self.tile, self.numbers = tile, np.arange(len(vectors)) if used is None else np.flatnonzero(used)
        vectors = vectors[self.numbers]
        self.vectors = as_tensor(vectors, tile.device)
        self.groups: Cells | None = None
        self.step = tile.height(len(vectors))  # queries at a time
        if len(vectors) >= TWO_LEVELS:
            self.groups = lay_out(Vectors(vectors), "groups", isqrt(len(vectors)), Stage(None), tile)
            self.step = QUERIES_GROUPED

    def nearest(self, queries: torch.Tensor, count: int) -> np.ndarray:
        """`(len(queries), count)` numbers of centroids; above all numbers where the groups have fewer."""
        if self.groups is None:
            products = self.tile.product(queries, self.vectors)[: len(queries), : len(self.vectors)]
            found = products.argmax(1, keepdim=True) if count == 1 else products.topk(count, 1, sorted=False).indices
            return self.numbers[found.cpu().numpy()]
        best = TopK(
            torch.full((len(queries), count), -torch.inf, device=queries.device),
            torch.zeros((len(queries), count), dtype=torch.int32, device=queries.device),
            count,
            ROUNDING,
        )
        # Twice as many groups as hold `count` centroids on average.
        probes = max(GROUPS_PROBED, 2 * count * len(self.groups.centroids) // len(self.vectors))
        probe_cells(queries, self.groups, probes, best, self.tile, self.tile.size)
        found = self.numbers[self.groups.vectors.labels(best.candidates.cpu().numpy())]
        return np.where(best.values.cpu().numpy() == -np.inf, self.numbers[-1] + 1, found)


def train_centroids(side: Vectors, name: str, cells: int, stage: Stage, tile: Tile) -> np.ndarray:
    """`(cells, width)` centroids of length 1, float32, by spherical k-means on a random sample of the side."""
    rng = np.random.default_rng(SEED)
    rows = np.sort(rng.choice(len(side), min(len(side), POINTS_PER_CELL * cells), replace=False))
    sample = Vectors(stage.array(f"{name}-sample", (len(rows), side.width), side.kind))
    copy_rows(side, rows, sample.matrix)
    centroids = sample[np.sort(rng.choice(len(rows), cells, replace=False))]
    for _ in range(ROUNDS):
        sums = np.zeros((cells, side.width))
        for _, block, nearest in _nearest_cells(sample, centroids, tile):
            order = np.argsort(nearest, kind="stable")
            there, first = np.unique(nearest[order], return_index=True)
            sums[there] += np.add.reduceat(block[order], first, axis=0, dtype=np.float64)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        empty = np.flatnonzero(lengths == 0)
        centroids = (sums / np.where(lengths == 0, 1, lengths)).astype(np.float32)
        centroids[empty] = sample[np.sort(rng.choice(len(rows), len(empty), replace=False))]
    return centroids


def _nearest_cells(side: Vectors, centroids: np.ndarray, tile: Tile) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Start of each block of vectors, the block, and the nearest centroid of each of its vectors."""
    search = Centroids(centroids, tile)
    rows = search.step if search.groups else min(search.step, side.step)
    for start in range(0, len(side), rows):
        block = side.block(start, start + rows)
        yield start, block, search.nearest(as_tensor(block, tile.device), 1)[:, 0]


def copy_rows(side: Vectors, rows: np.ndarray, matrix: np.ndarray) -> None:
    for start in range(0, len(rows), side.step):
        convert(side[rows[start : start + side.step]], matrix[start : start + side.step])


@dataclass(frozen=True)
class Cells:
    """A side sorted by cell: cell `i` has the vectors from `starts[i]` to `starts[i + 1]`."""

    vectors: Vectors
    centroids: np.ndarray
    starts: np.ndarray
    search: Centroids  # of those whose cells are not empty


def lay_out(side: Vectors, name: str, cells: int, stage: Stage, tile: Tile) -> Cells:
    """Sorts a side into at most `cells` cells, or opens the result of an earlier process in the stage."""
    cells = min(cells, len(side))
    centroids = stage.array(f"{name}-centroids", (cells, side.width), np.float32)
    order = stage.array(f"{name}-order", (len(side),), np.int32)
    starts = stage.array(f"{name}-starts", (cells + 1,), np.int64)
    matrix = stage.array(f"{name}-vectors", (len(side), side.width), side.kind)
    if not stage.state.get(f"{name}-cells"):
        centroids[:] = train_centroids(side, name, cells, stage, tile)
        cell = np.empty(len(side), np.int32)
        for start, block, nearest in _nearest_cells(side, centroids, tile):
            cell[start : start + len(block)] = nearest
        starts[1:] = np.cumsum(np.bincount(cell, minlength=cells))
        order[:] = np.argsort(cell, kind="stable")
        copy_rows(side, order, matrix)
        stage.update(**{f"{name}-cells": cells})
    search = Centroids(np.array(centroids), tile, np.diff(starts) > 0)
    return Cells(Vectors(matrix, labels=side.labels(np.array(order))), np.array(centroids), np.array(starts), search)


def probe_cells(queries: torch.Tensor, cells: Cells, probes: int, best: TopK, tile: Tile, rows: int) -> None:
    """Compares queries with the vectors of their `probes` nearest cells that are not empty, `rows` at a time."""
    search = cells.search
    probes = min(probes, len(search.vectors))
    total = len(cells.centroids)
    chosen = np.empty((len(queries), probes), np.uint16 if total < 2**16 else np.int64)  # sorted by radix
    for start in range(0, len(queries), search.step):
        chosen[start : start + search.step] = search.nearest(queries[start : start + search.step].float(), probes)
    askers = np.argsort(chosen, axis=None, kind="stable")
    ends = np.cumsum(np.bincount(chosen.ravel(), minlength=total)[:total])
    del chosen
    askers //= probes
    columns = tile.height(rows)
    for cell in np.flatnonzero(np.diff(ends, prepend=0)):
        ours = askers[ends[cell - 1] if cell else 0 : ends[cell]]
        stop = int(cells.starts[cell + 1])
        for start in range(int(cells.starts[cell]), stop, columns):
            candidates = as_tensor(cells.vectors.block(start, min(start + columns, stop)), tile.device)
            for part in as_tensor(ours, tile.device).split(rows):
                best.update(part, tile.product(queries[part].float(), candidates), start, by_row=True)
