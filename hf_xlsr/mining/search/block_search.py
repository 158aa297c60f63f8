"""Resumable search of two sides, block by block, within a memory budget."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import torch
from tqdm.auto import tqdm

from hf_xlsr.mining.search.cells import Cells, lay_out, probe_cells
from hf_xlsr.mining.search.tiles import ROUNDING, Filter, Tile, TopK, search_down_to, settle
from hf_xlsr.mining.search.vectors import Vectors, as_tensor, middle, sample_rows, scan
from hf_xlsr.mining.work_folder import SECONDS_BETWEEN_LOOKS, Stage, load_arrays, save_arrays
from hf_xlsr.utils.devices import product_precision
from hf_xlsr.utils.errors import XlsrError

SIDES = ("source", "target")
RESULTS = ("forward_similarities", "forward_indices", "backward_similarities", "backward_indices")
RECALL_SAMPLE = 1000  # rows of each side
# Queries at a time, and queries and candidates of a tile, from the fastest to the smallest.
SIZES = {
    "exact": ((8192, 2048), (8192, 1024), (4096, 1024), (2048, 1024), (1024, 512), (512, 512)),
    "ivf": ((131072, 2048), (32768, 2048), (16384, 1024), (16384, 512), (8192, 512), (4096, 512), (1024, 512)),
}
ROWS_SETTLED = 512
LISTS = ("values", "candidates")  # arrays of the targets' lists
FOUND = "found"  # folder of what several processes found


class Neighbours(NamedTuple):
    """Similarities (float32) and indices (int64) of one side's neighbours, `(rows, k)` each."""

    similarities: np.ndarray
    indices: np.ndarray

    @classmethod
    def empty(cls, rows: int, k: int) -> Neighbours:
        """Room for the neighbours of that many rows."""
        return cls(np.empty((rows, k), np.float32), np.empty((rows, k), np.int64))

    def of(self, rows: np.ndarray) -> Neighbours:
        """The neighbours of some rows."""
        return Neighbours(self.similarities[rows], self.indices[rows])

    def store(self, rows: np.ndarray | slice, neighbours: Neighbours) -> None:
        """Writes the neighbours of some rows."""
        self.similarities[rows] = neighbours.similarities
        self.indices[rows] = neighbours.indices


def choose_sizes(
    matrices: Sequence[np.ndarray],
    k: int,
    listed: int,
    method: str,
    cells: int,
    probes: int,
    memory: int | None,
    in_files: bool,
) -> tuple[int, int]:
    """Largest `SIZES` whose arrays fit a memory budget; half of the machine's available memory if None.

    `k` neighbours of each row are returned, and `listed` candidates are held. With `in_files`, arrays that grow with the
    sides take no memory.
    """
    if memory is None:
        memory = psutil.virtual_memory().available // 2
    counts = [len(matrix) for matrix in matrices]
    width = matrices[0].shape[1]
    rows = sum(counts)
    largest = max(counts)

    fingerprint_bytes = 24 * largest
    result_bytes = 12 * k * rows
    if method == "exact":
        itemsize = 4
        kept_bytes = 0
        bytes_before_blocks = fingerprint_bytes
        target_list_bytes = 8 * listed * counts[1]
        growing_bytes = result_bytes + target_list_bytes
    else:
        itemsize = 2 if all(matrix.dtype == np.float16 for matrix in matrices) else 4
        kept_bytes = 4 * rows  # the cell of each row
        training_bytes = 48 * width * cells
        sorting_bytes = 16 * largest
        bytes_before_blocks = max(fingerprint_bytes, training_bytes, sorting_bytes)  # one after the other
        sorted_vector_bytes = width * itemsize * rows
        growing_bytes = result_bytes + sorted_vector_bytes

    needed = 0
    for block, tile in SIZES[method]:
        queries = min(block, largest)
        vector_bytes = width * (itemsize * queries + 16 * tile)
        query_list_bytes = 16 * queries * listed
        tile_bytes = 5 * tile * tile + 512 * tile * listed
        block_bytes = vector_bytes + query_list_bytes + tile_bytes
        if method == "ivf":
            centre_bytes = (8 * width + 2048) * cells
            probe_bytes = 16 * queries * probes
            block_bytes += centre_bytes + probe_bytes

        needed = kept_bytes + max(bytes_before_blocks, block_bytes)
        if not in_files:
            needed += growing_bytes
        if needed <= memory:
            return block, tile

    raise XlsrError(f"`memory` must be at least {-(-needed // 1_000_000)}MB for this search, got {memory:,} bytes.")


class BlockSearch:
    """Searches the `k` nearest neighbours of two sides (source and target) in each other.

    A direction is 0 (sources ask, targets are candidates) or 1 (the reverse). `sizes` are those of `choose_sizes`.
    `process` is the number of this process and of all that share the folder of the stage. They take blocks of queries in
    turn and save what they find; the first process collects it.
    """

    def __init__(
        self,
        matrices: Sequence[np.ndarray],
        k: int,
        sizes: tuple[int, int],
        filter_: Filter,
        stage: Stage,
        cells: int = 1,
        show_progress_bar: bool = False,
        process: tuple[int, int] = (0, 1),
    ) -> None:
        self.k = k
        self.filter = filter_
        self.device = filter_.device
        self.cells = cells
        self.rows, self.height = sizes  # queries at a time, and rows and columns of a tile
        self.quiet = not show_progress_bar

        self.index, self.processes = process
        self.stage = stage
        self.own_stage = stage  # progress and unfinished lists of this process
        if stage.path is not None and self.processes > 1:
            self.own_stage = Stage(stage.path / f"process-{self.index}")

        self.stats = []
        self.sides = []
        middles = [middle(matrix) for matrix in matrices]
        for matrix, name, own_middle, other_middle in zip(matrices, SIDES, middles, middles[::-1], strict=True):
            stats = scan(matrix, name, k, own_middle, other_middle, filter_.rounded)
            self.stats.append(stats)
            searched_rows = np.delete(np.arange(len(matrix)), stats.surplus) if len(stats.surplus) else None
            self.sides.append(Vectors(matrix, searched_rows))
        self.tile = Tile(self.height, filter_, cells)

    def run(
        self,
        method: str,
        results: Sequence[Neighbours],
        probes: int,
        recall: float | None,
    ) -> None:
        """Fills `results`, one a direction, and finishes the stage.

        Of several processes the first one does both, and the others only pass it what they found.
        """
        if method == "exact":
            self.exact(results)
        else:
            self.by_cells(results, probes, recall)
        if self.index:
            return

        measured = 1.0
        margin = 0.0
        if method == "ivf":
            measured, margin = self.recall(results)
        for stats, neighbours in zip(self.stats, results, strict=True):
            neighbours.store(stats.surplus, neighbours.of(stats.originals))
        self.stage.finish(recall=measured, margin=margin)
        self.stage.clear(keep=RESULTS)

    def exact(self, results: Sequence[Neighbours]) -> None:
        """Compares every source with every target, once for both directions, and fills `results`."""
        source, target = self.sides
        done = self.own_stage.state.get("progress", 0)
        target_lists = self._target_lists(done)
        with product_precision(self.filter.precision), self._bar(len(source), done) as bar:
            for start, following in self._share(len(source), done):
                queries = as_tensor(source.block(start, start + self.rows), self.device)
                lists = self._lists(0, len(queries))
                for first, candidates in self._blocks(target):
                    columns = slice(first, first + len(candidates))
                    for rows, products in self._products(queries, candidates):
                        lists.update(rows, products, first, by_row=True)
                        target_lists.update(columns, products, start + rows.start, by_row=False)
                    compared = len(queries) * columns.stop // len(target)
                    bar.update(start + compared - bar.n)

                self._finish(results, 0, source, start, lists, target)
                self._save_progress(target_lists, following)
                del queries, lists  # before the next ones are allocated

            if self.processes > 1:
                lists_of_targets = dict(zip(LISTS, target_lists.arrays(), strict=True))
                self._save(f"columns-{self.index}", **lists_of_targets)
                if self.index:
                    return
                self._collect(results, 0)
                for index in range(1, self.processes):
                    arrays = self._load(f"columns-{index}")
                    target_lists.merge(*(as_tensor(arrays[name]) for name in LISTS))
            self._finish(results, 1, target, 0, target_lists, source, shared=False)

    def by_cells(self, results: Sequence[Neighbours], probes: int, recall: float | None) -> None:
        """Compares every vector with those in the `probes` nearest cells of the other side, or more for the `recall`."""
        done = self.own_stage.state.get("progress", 0)
        if self.index:
            self.stage.wait("probes")  # both sides are laid out before they are known
        with product_precision(self.filter.precision), self._bar(sum(map(len, self.sides)), done) as bar:
            layouts = []
            for side, name in zip(self.sides, SIDES, strict=True):
                layouts.append(lay_out(side, name, self.cells, self.stage, self.tile))

            if not self.index and "probes" not in self.stage.state:
                if recall is not None:
                    probes = self._enough_probes(layouts, probes, recall)
                self.stage.update(probes=probes)
            probes = self.stage.state["probes"]

            queries_before = 0  # those of the direction before
            for direction in (0, 1):
                queries = layouts[direction].vectors
                candidates = layouts[1 - direction]
                for start, following in self._share(len(queries), max(0, done - queries_before)):
                    block = queries.block(start, start + self.rows, queries.kind)
                    lists = self._probe(direction, block, candidates, probes)
                    self._finish(results, direction, queries, start, lists, candidates.vectors, certain=False)
                    self.own_stage.update(progress=queries_before + following)
                    bar.update(len(block))
                    del block, lists  # before the next ones are allocated
                queries_before += len(queries)

        if self.processes > 1 and not self.index:
            self._collect(results, 0)
            self._collect(results, 1)

    def _share(self, count: int, done: int) -> Iterator[tuple[int, int]]:
        """The starts of this process's blocks of `count` queries that are not done, each with the start that follows."""
        stride = self.rows * self.processes
        for start in range(max(done, self.index * self.rows), count, stride):
            yield start, min(start + stride, count)

    def _shared_file(self, name: str) -> Path:
        assert self.stage.path is not None, "several processes share a folder"
        return self.stage.path / FOUND / f"{name}.npz"

    def _save(self, name: str, **arrays: np.ndarray) -> None:
        """Saves what the first process will load."""
        path = self._shared_file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_arrays(path, **arrays)

    def _load(self, name: str) -> dict[str, np.ndarray]:
        """What a process has saved, or will have."""
        path = self._shared_file(name)
        while not path.exists():
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return load_arrays(path)

    def _collect(self, results: Sequence[Neighbours], direction: int) -> None:
        """Fills `results` with the blocks of all processes."""
        for start in range(0, len(self.sides[direction]), self.rows):
            arrays = self._load(f"{direction}-{start}")
            rows = arrays.pop("rows")
            results[direction].store(rows, Neighbours(**arrays))

    def _probe(self, direction: int, block: np.ndarray, candidates: Cells, probes: int) -> TopK:
        """The best candidates of some queries in their nearest cells."""
        lists = self._lists(direction, len(block))
        probe_cells(as_tensor(block, self.device), candidates, probes, lists, self.tile)
        return lists

    def _enough_probes(self, layouts: Sequence[Cells], probes: int, recall: float) -> int:
        """The number of cells in which a sample of both sides finds that share of its true neighbours."""
        samples = []
        for direction, side in enumerate(self.sides):
            block = side[self._sample(direction, seed=1)]
            samples.append((block, self.nearest(direction, block).indices))

        while probes < self.cells:
            hits = []
            for direction, (block, true_indices) in enumerate(samples):
                candidates = layouts[1 - direction]
                stored = block.astype(candidates.vectors.kind, copy=False)
                lists = self._probe(direction, stored, candidates, probes)
                neighbours = self._settle(direction, block, lists, candidates.vectors, certain=False)
                hits.append(_hits(neighbours.indices, true_indices))
            if np.concatenate(hits).mean() >= recall:
                break
            probes *= 2
        return min(probes, self.cells)

    def _sample(self, direction: int, seed: int) -> np.ndarray:
        return sample_rows(np.random.default_rng(seed), len(self.sides[direction]), RECALL_SAMPLE)

    def recall(self, results: Sequence[Neighbours]) -> tuple[float, float]:
        """Share of true neighbours of another random sample in the results, and half the width of its 95 % interval."""
        hits = []
        for direction, side in enumerate(self.sides):
            rows = self._sample(direction, seed=0)
            true_neighbours = self.nearest(direction, side[rows])
            indices = results[direction].indices[side.labels(rows)]
            hits.append(_hits(indices, true_neighbours.indices))
        shares = np.concatenate(hits)
        margin = 1.96 * shares.std() / np.sqrt(len(shares))
        return float(shares.mean()), float(margin)

    def nearest(self, direction: int, block: np.ndarray) -> Neighbours:
        """Exact neighbours of some float32 vectors."""
        candidates = self.sides[1 - direction]
        queries = as_tensor(block, self.device)
        lists = self._lists(direction, len(block))
        with product_precision(self.filter.precision):
            for first, columns in self._blocks(candidates):
                for rows, products in self._products(queries, columns):
                    lists.update(rows, products, first, by_row=True)
        return self._settle(direction, block, lists, candidates, certain=True)

    def _bar(self, total: int, done: int) -> tqdm:
        return tqdm(
            desc="neighbours",
            total=total,
            initial=done,
            unit=" rows",
            unit_scale=True,
            disable=self.quiet,
        )

    def _lists(self, direction: int, queries: int) -> TopK:
        """Empty lists of that many queries."""
        return TopK.empty(queries, *self._limits(direction), self.device)

    def _limits(self, direction: int) -> tuple[int, int, float]:
        """Length of a list, number of neighbours in it, and how much the difference of two products may err.

        A list holds some candidates more than `k`, so that rounding hides no neighbour.
        """
        count = len(self.sides[1 - direction])
        slack = self.filter.slack(self.stats[direction], self.stats[1 - direction])
        return min(self.k + self.filter.spare, count), min(self.k, count), slack

    def _blocks(self, side: Vectors) -> Iterator[tuple[int, torch.Tensor]]:
        """Position of the first vector of each block of candidates, and the block."""
        for first in range(0, len(side), self.height):
            yield first, as_tensor(side.block(first, first + self.height), self.device)

    def _products(self, queries: torch.Tensor, candidates: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Tiles of similarities, with the queries of each."""
        for top in range(0, len(queries), self.height):
            rows = slice(top, min(top + self.height, len(queries)))
            yield rows, self.tile.product(queries[rows], candidates)

    def _finish(
        self,
        results: Sequence[Neighbours],
        direction: int,
        queries: Vectors,
        start: int,
        lists: TopK,
        candidates: Vectors,
        *,
        certain: bool = True,
        shared: bool = True,
    ) -> None:
        """Computes and stores the neighbours of the queries from `start` on; `lists` are their candidates.

        They are stored in `results` or, if the queries are `shared` by several processes, in a file for the first one.
        For `certain` see `_settle`.
        """
        in_file = shared and self.processes > 1
        block = Neighbours.empty(len(lists), lists.k) if in_file else results[direction]
        for first in range(0, len(lists), ROWS_SETTLED):
            chunk = lists[first : first + ROWS_SETTLED]
            positions = np.arange(start + first, start + first + len(chunk))
            neighbours = self._settle(direction, queries[positions], chunk, candidates, certain=certain)
            rows = positions - start if in_file else queries.labels(positions)
            block.store(rows, neighbours)

        if in_file:
            labels = queries.labels(np.arange(start, start + len(lists)))
            self._save(f"{direction}-{start}", rows=labels, **block._asdict())

    def _settle(
        self,
        direction: int,
        block: np.ndarray,
        lists: TopK,
        candidates: Vectors,
        *,
        certain: bool,
    ) -> Neighbours:
        """The neighbours of some queries from their lists.

        If `certain`, all candidates were compared: those that near ties pushed out of a list are searched again.
        """
        similarities, indices, doubtful = settle(block, lists, candidates)
        neighbours = Neighbours(similarities, indices)
        if not certain:
            # Cells that hold fewer than `k` vectors together.
            missing = np.flatnonzero(similarities[:, -1] == -np.inf)
            if missing.size:
                neighbours.store(missing, self.nearest(direction, block[missing]))
            return neighbours

        with product_precision("ieee"):
            for first in range(0, len(doubtful), self.height):
                rows = doubtful[first : first + self.height]
                queries = block[rows]
                largest_products = self.stats[1 - direction].longest * np.linalg.norm(queries, axis=1)
                floor = similarities[rows, -1] - ROUNDING * largest_products
                neighbours.store(rows, Neighbours(*search_down_to(queries, floor, candidates, lists.k, self.tile)))
        return neighbours

    def _target_lists(self, done: int) -> TopK:
        """The targets' lists after that many sources."""
        listed, k, slack = self._limits(1)
        shape = (len(self.sides[1]), listed)
        values = self.own_stage.array("values", shape, np.float32)
        candidates = self.own_stage.array("candidates", shape, np.int32)
        if done:
            values[:] = self.own_stage.array(f"values-{done}", shape, np.float32)
            candidates[:] = self.own_stage.array(f"candidates-{done}", shape, np.int32)
        else:
            values[:] = -np.inf
        return TopK(as_tensor(values, self.device), as_tensor(candidates, self.device), k, slack)

    def _save_progress(self, target_lists: TopK, done: int) -> None:
        """Saves the targets' lists after that many sources, and removes those before."""
        if self.own_stage.path is None:
            return
        keep = [*LISTS, *RESULTS]
        for name, array in zip(LISTS, target_lists.arrays(), strict=True):
            saved = f"{name}-{done}"
            self.own_stage.array(saved, array.shape, array.dtype.type)[:] = array
            keep.append(saved)
        self.own_stage.update(progress=done)
        self.own_stage.clear(keep)


def _hits(indices: np.ndarray, true_indices: np.ndarray) -> np.ndarray:
    """The share of each row's true neighbours among its indices, `(rows,)`."""
    is_hit = (indices[:, :, None] == true_indices[:, None]).any(1)
    shares: np.ndarray = is_hit.mean(axis=1)
    return shares
