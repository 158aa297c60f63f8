"""Resumable search of two sides, block by block, within a memory budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import psutil
import torch
from tqdm.auto import tqdm

from hf_xlsr.mining.search.cells import Cells, lay_out, probe_cells
from hf_xlsr.mining.search.neighbours import ROUNDING, product_precision
from hf_xlsr.mining.search.storage import Workspace
from hf_xlsr.mining.search.tiles import Filter, Tile, TopK, as_tensor, search_down_to, settle
from hf_xlsr.mining.search.vectors import Vectors, VectorStats
from hf_xlsr.utils.errors import XlsrError

RECALL_SAMPLE = 1000  # rows of each side
# Queries at a time, and queries and candidates of a tile, from the fastest to the smallest. A killed process loses one
# block; the more queries it has, the more of them share a cell.
SIZES = {
    "exact": ((8192, 2048), (8192, 1024), (4096, 1024), (2048, 1024), (1024, 512), (512, 512)),
    "ivf": ((131072, 2048), (32768, 2048), (16384, 1024), (16384, 512), (8192, 512), (4096, 512), (1024, 512)),
}
ROWS_SETTLED = 512


class Sizes(NamedTuple):
    """Rows of queries at a time, rows and columns of a tile, and whether arrays that grow with the sides are in files."""

    rows: int
    tile: int
    in_files: bool


class Task(NamedTuple):
    """What the memory of a search depends on: rows of both sides, their width and bytes per number, and the method."""

    source: int
    target: int
    width: int
    itemsize: int
    k: int
    method: str
    cells: int
    probes: int


class Neighbours(NamedTuple):
    """Similarities (float32) and indices (int64) of one side's neighbours, `(rows, k)` each."""

    similarities: np.ndarray
    indices: np.ndarray


def choose_sizes(task: Task, memory: int | None, filter_: Filter) -> Sizes:
    """Largest block sizes whose arrays fit a memory budget; half of the machine's available memory if None."""
    if memory is None:
        memory = psutil.virtual_memory().available // 2
    rows, most, listed = task.source + task.target, max(task.source, task.target), task.k + filter_.spare
    growing = 12 * task.k * rows
    growing += 8 * listed * task.target if task.method == "exact" else task.width * task.itemsize * rows
    # One after the other: fingerprints, training, sorting by cell, blocks.
    phases, fixed = [24 * most], 0
    if task.method == "ivf":
        fixed = 4 * rows
        phases += [48 * task.width * task.cells, 16 * most]
    needed = 0
    for in_files in (False, True):
        for block, tile in SIZES[task.method]:
            needed = fixed + max(*phases, _block_bytes(task, block, tile, listed)) + (0 if in_files else growing)
            if needed <= memory:
                return Sizes(block, tile, in_files)
    raise XlsrError(f"`memory` must be at least {-(-needed // 1_000_000)}MB for this search, got {memory:,} bytes.")


def _block_bytes(task: Task, block: int, tile: int, listed: int) -> int:
    block = min(block, max(task.source, task.target))
    vectors = task.width * ((4 if task.method == "exact" else task.itemsize) * block + 16 * tile)
    probing = (8 * task.width + 2048) * task.cells + 16 * block * task.probes if task.method == "ivf" else 0
    return vectors + probing + 16 * block * listed + 5 * tile * tile + 512 * tile * listed


class BlockSearch:
    """Fills `results`, the neighbours of two sides (source and target) in each other, by the sides' labels."""

    def __init__(
        self,
        sides: Sequence[Vectors],
        stats: Sequence[VectorStats],
        results: Sequence[Neighbours],
        sizes: Sizes,
        filter_: Filter,
        workspace: Workspace,
        cells: int = 1,
        show_progress_bar: bool = False,
    ) -> None:
        self.sides, self.stats, self.results, self.sizes = sides, stats, results, sizes
        self.filter, self.device, self.workspace, self.cells = filter_, filter_.device, workspace, cells
        self.show_progress_bar = show_progress_bar
        self.tile = Tile(sizes.tile, filter_, cells)

    def exact(self) -> None:
        """Compares every source with every target, once for both directions."""
        source, target = self.sides
        done = self.workspace.stage.state.get("progress", 0)
        kept = self._column_arrays(done)
        columns = self._best(1, *(as_tensor(array, self.device) for array in kept))
        with product_precision(self.filter.precision), self._bar(len(source), done) as bar:
            for start in range(done, len(source), self.sizes.rows):
                block = source.block(start, start + self.sizes.rows)
                queries, lists = as_tensor(block, self.device), self._lists(0, len(block))
                for first, candidates in self._blocks(target):
                    askers = slice(first, first + len(candidates))
                    for top in range(0, len(block), self.sizes.tile):
                        part = slice(top, min(top + self.sizes.tile, len(block)))
                        products = self.tile.product(queries[part], candidates)
                        lists.update(part, products, first, by_row=True)
                        columns.update(askers, products, start + top, by_row=False)
                    bar.update(start + len(block) * askers.stop // len(target) - bar.n)
                self._finish(0, source, start, block, lists, target)
                self._keep(columns, start + len(block))
                del block, queries, lists  # before the next ones are allocated
            for start in range(0, len(target), ROWS_SETTLED):
                lists = columns[start : start + ROWS_SETTLED]
                self._finish(1, target, start, target.block(start, start + ROWS_SETTLED), lists, source)

    def by_cells(self, probes: int, recall: float | None = None) -> None:
        """Compares every vector with those in the `probes` nearest cells of the other side, or more for the `recall`."""
        done, before = self.workspace.stage.state.get("progress", 0), 0
        with product_precision(self.filter.precision), self._bar(sum(map(len, self.sides)), done) as bar:
            laid = [
                lay_out(side, name, self.cells, self.workspace, self.tile)
                for side, name in zip(self.sides, ("source", "target"), strict=True)
            ]
            if recall is not None:
                probes = self.workspace.stage.state.get("probes") or self._enough_probes(laid, probes, recall)
                self.workspace.stage.update(probes=probes)
            for direction, (asking, other) in enumerate((laid, laid[::-1])):
                queries = asking.vectors
                for start in range(max(0, done - before), len(queries), self.sizes.rows):
                    block = queries.block(start, start + self.sizes.rows, queries.kind)
                    lists = self._lists(direction, len(block))
                    probe_cells(as_tensor(block, self.device), other, probes, lists, self.tile, self.sizes.tile)
                    self._finish(direction, queries, start, block, lists, other.vectors, certain=False)
                    self.workspace.stage.update(progress=before + start + len(block))
                    bar.update(len(block))
                    del block, lists  # before the next ones are allocated
                before += len(queries)

    def _enough_probes(self, laid: list[Cells], probes: int, recall: float) -> int:
        """The number of cells in which a sample of both sides finds that share of its true neighbours."""
        samples = []
        for direction, other in enumerate(laid[::-1]):
            block = self.sides[direction][self._sample(direction, seed=1)]
            samples.append((direction, other, block, self._nearest(direction, block)[1]))
        while probes < self.cells:
            found = []
            for direction, other, block, true in samples:
                lists = self._lists(direction, len(block))
                queries = as_tensor(block.astype(other.vectors.kind, copy=False), self.device)
                probe_cells(queries, other, probes, lists, self.tile, self.sizes.tile)
                indices = self._settle(direction, block, lists, other.vectors, certain=False)[1]
                found.append(_hits(indices, true))
            if np.concatenate(found).mean() >= recall:
                break
            probes *= 2
        return min(probes, self.cells)

    def _sample(self, direction: int, seed: int) -> np.ndarray:
        count = len(self.sides[direction])
        return np.sort(np.random.default_rng(seed).choice(count, min(RECALL_SAMPLE, count), replace=False))

    def recall(self) -> tuple[float, float]:
        """Share of true neighbours of another random sample in the results, and half the width of its 95 % interval."""
        hits = []
        for direction, (side, result) in enumerate(zip(self.sides, self.results, strict=True)):
            rows = self._sample(direction, seed=0)
            with product_precision(self.filter.precision):
                true = self._nearest(direction, side[rows])[1]
            hits.append(_hits(result.indices[side.labels(rows)], true))
        shares = np.concatenate(hits)
        return float(shares.mean()), float(1.96 * shares.std() / np.sqrt(len(shares)))

    def _bar(self, total: int, done: int) -> tqdm:
        return tqdm(
            total=total,
            initial=done,
            desc="neighbours",
            unit=" rows",
            unit_scale=True,
            disable=not self.show_progress_bar,
        )

    def _lists(self, direction: int, askers: int) -> TopK:
        shape = (askers, self._listed(direction))
        values = torch.full(shape, -torch.inf, device=self.device)
        return self._best(direction, values, torch.zeros(shape, dtype=torch.int32, device=self.device))

    def _best(self, direction: int, values: torch.Tensor, candidates: torch.Tensor) -> TopK:
        slack = self.filter.slack(self.stats[direction], self.stats[1 - direction])
        return TopK(values, candidates, self.results[direction].indices.shape[1], slack)

    def _listed(self, direction: int) -> int:
        """Length of a list: `k` and some more, so that rounding hides none."""
        return min(self.results[direction].indices.shape[1] + self.filter.spare, len(self.sides[1 - direction]))

    def _blocks(self, side: Vectors) -> Iterator[tuple[int, torch.Tensor]]:
        for first in range(0, len(side), self.sizes.tile):
            yield first, as_tensor(side.block(first, first + self.sizes.tile), self.device)

    def _nearest(self, direction: int, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Exact neighbours of some vectors."""
        candidates = self.sides[1 - direction]
        queries, lists = as_tensor(block, self.device), self._lists(direction, len(block))
        for first, columns in self._blocks(candidates):
            for top in range(0, len(block), self.sizes.tile):
                part = slice(top, min(top + self.sizes.tile, len(block)))
                lists.update(part, self.tile.product(queries[part], columns), first, by_row=True)
        return self._settle(direction, block, lists, candidates, certain=True)

    def _finish(
        self,
        direction: int,
        queries: Vectors,
        start: int,
        block: np.ndarray,
        lists: TopK,
        candidates: Vectors,
        *,
        certain: bool = True,
    ) -> None:
        """Stores the neighbours of the block of queries that begins at `start`."""
        result = self.results[direction]
        for first in range(0, len(block), ROWS_SETTLED):
            some = lists[first : first + ROWS_SETTLED]
            labels = queries.labels(np.arange(start + first, start + first + len(some)))
            part = block[first : first + ROWS_SETTLED].astype(np.float32, copy=False)
            result.similarities[labels], result.indices[labels] = self._settle(
                direction, part, some, candidates, certain=certain
            )

    def _settle(
        self, direction: int, block: np.ndarray, lists: TopK, candidates: Vectors, *, certain: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        similarities, indices, doubtful = settle(block, lists, candidates)
        if not certain:
            # Cells that hold fewer than `k` vectors together.
            missing = np.flatnonzero(similarities[:, -1] == -np.inf)
            if missing.size:
                similarities[missing], indices[missing] = self._nearest(direction, block[missing])
            return similarities, indices
        with product_precision("ieee"):
            for first in range(0, len(doubtful), self.sizes.tile):
                rows = doubtful[first : first + self.sizes.tile]
                queries = block[rows]
                lengths = self.stats[1 - direction].longest * np.linalg.norm(queries, axis=1)
                floor = similarities[rows, -1] - ROUNDING * lengths
                similarities[rows], indices[rows] = search_down_to(queries, floor, candidates, lists.k, self.tile)
        return similarities, indices

    def _column_arrays(self, done: int) -> tuple[np.ndarray, np.ndarray]:
        """The targets' lists after that many sources."""
        shape = (len(self.sides[1]), self._listed(1))
        arrays = self.workspace.array("values", shape, np.float32), self.workspace.array("candidates", shape, np.int32)
        for array, name, fill in zip(arrays, ("values", "candidates"), (-np.inf, 0), strict=True):
            array[:] = self.workspace.array(f"{name}-{done}", shape, array.dtype.type, kept=True) if done else fill
        return arrays

    def _keep(self, columns: TopK, done: int) -> None:
        """Saves the targets' lists after that many sources, and removes those before."""
        stage = self.workspace.stage
        if stage.path is None:
            return
        before = stage.state.get("progress", 0)
        for tensor, name, kind in (
            (columns.values, "values", np.float32),
            (columns.candidates, "candidates", np.int32),
        ):
            kept = self.workspace.array(f"{name}-{done}", tuple(tensor.shape), kind, kept=True)
            kept[:] = tensor.cpu().numpy()
        stage.update(progress=done)
        if before:
            self.workspace.remove(f"values-{before}", f"candidates-{before}")


def _hits(found: np.ndarray, true: np.ndarray) -> np.ndarray:
    """The share of each row's true neighbours among those found, `(rows,)`."""
    return (found[:, :, None] == true[:, None]).any(1).mean(1)
