"""Resumable search of two sides, block by block, within a memory budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from tqdm.auto import tqdm

from hf_xlsr.mining.search.cells import ROWS_ORDERED, Cells, lay_out, probe_cells
from hf_xlsr.mining.search.spans import Arrays, Part, SpanTasks, opened
from hf_xlsr.mining.search.tiles import ROUNDING, Filter, Tile, TopK, search_down_to, settle
from hf_xlsr.mining.search.vectors import ROWS_OF_CLASS, Vectors, as_tensor, middle, sample_rows, scan
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
SPANS = 16  # of sources in an exact search, at most
SPAN_STEP = 2048  # rows that spans are multiples of, so that tiles are full
SMALLEST_SPAN = 8192  # rows
ROWS_MERGED = 1 << 14  # targets of a task
ROWS_PROBED = 1 << 17  # queries of a task
ROWS_LISTED = 1 << 20  # candidates of a task that compares a sample


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


class SearchSize(NamedTuple):
    """What the memory of a search depends on.

    Attributes:
        rows: Rows of each side.
        width: Numbers of a vector.
        itemsize: Bytes of a number in the files of vectors.
        k: Neighbours of each row that are returned.
        listed: Candidates that are held.
        method: `exact` or `ivf`.
        cells: Cells of each side.
        probes: Cells that a row is compared with.
    """

    rows: tuple[int, int]
    width: int
    itemsize: int
    k: int
    listed: int
    method: str
    cells: int
    probes: int

    def growing_bytes(self) -> int:
        """Memory of results and sorted vectors where they have no files."""
        total = sum(self.rows)
        result_bytes = 2 * 12 * self.k * total
        if self.method == "exact":
            return result_bytes
        cell_bytes = 8 * total  # the cell and the position of each row
        return result_bytes + cell_bytes + self.width * self.itemsize * total

    def bytes_before_blocks(self) -> int:
        """Memory of the process that prepares the search, in its largest step."""
        if self.method == "exact":
            return self.fingerprint_bytes()
        largest = max(self.rows)
        training_bytes = 48 * self.width * self.cells
        sorting_bytes = 24 * self.cells + 48 * min(largest, ROWS_ORDERED)
        return max(self.fingerprint_bytes(), training_bytes, sorting_bytes)  # one after the other

    def fingerprint_bytes(self) -> int:
        """Memory of looking for equal vectors."""
        largest = max(self.rows)
        return 8 * largest + 24 * min(largest, ROWS_OF_CLASS)

    def block_bytes(self, block: int, tile: int) -> int:
        """Memory of a process that searches `block` queries at a time, in tiles."""
        queries = min(block, max(self.rows))
        itemsize = 4 if self.method == "exact" else self.itemsize
        vector_bytes = self.width * (itemsize * queries + 16 * tile)
        query_list_bytes = 16 * queries * self.listed
        tile_bytes = 5 * tile * tile + 512 * tile * self.listed
        block_bytes = vector_bytes + query_list_bytes + tile_bytes
        if self.method == "exact":
            target_list_bytes = 8 * self.listed * self.rows[1]
            return block_bytes + target_list_bytes
        centre_bytes = (8 * self.width + 2048) * self.cells
        probe_bytes = 16 * queries * self.probes
        return block_bytes + centre_bytes + probe_bytes


def choose_sizes(size: SearchSize, memory: int, in_files: bool) -> tuple[int, int]:
    """Largest `SIZES` whose arrays fit a memory budget; with `in_files`, arrays that grow with the sides take none."""
    needed = 0
    for block, tile in SIZES[size.method]:
        needed = max(size.bytes_before_blocks(), size.block_bytes(block, tile))
        if not in_files:
            needed += size.growing_bytes()
        if needed <= memory:
            return block, tile

    raise XlsrError(f"`memory` must be at least {-(-needed // 1_000_000)}MB for this search, got {memory:,} bytes.")


def rows_of_span(count: int) -> int:
    """The sources of a task of exact search, of that many."""
    whole_tiles = -(-count // (SPANS * SPAN_STEP)) * SPAN_STEP
    return max(SMALLEST_SPAN, whole_tiles)


class BlockSearch:
    """Searches the `k` nearest neighbours of two sides (source and target) in each other.

    A direction is 0 (sources ask, targets are candidates) or 1 (the reverse). `sizes` are those of `choose_sizes`.
    Another process that gets the object opens the files of its matrices.
    """

    def __init__(
        self,
        matrices: Sequence[np.ndarray],
        k: int,
        sizes: tuple[int, int],
        filter_: Filter,
        cells: int = 1,
        show_progress_bar: bool = False,
    ) -> None:
        self.k = k
        self.filter = filter_
        self.device = filter_.device
        self.cells = cells
        self.rows, self.height = sizes  # queries at a time, and rows and columns of a tile
        self.quiet = not show_progress_bar

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
        tasks: SpanTasks,
    ) -> None:
        """Fills `results`, one a direction, and finishes the stage of the tasks."""
        measured = 1.0
        margin = 0.0
        if method == "exact":
            self.exact(results, tasks)
        else:
            self.by_cells(results, probes, recall, tasks)
            measured, margin = self.recall(results, tasks)

        for stats, neighbours in zip(self.stats, results, strict=True):
            neighbours.store(stats.surplus, neighbours.of(stats.originals))
        tasks.stage.update(result={"recall": measured, "margin": margin})
        tasks.stage.clear(keep=RESULTS)

    def exact(self, results: Sequence[Neighbours], tasks: SpanTasks) -> None:
        """Compares every source with every target, once for both directions, and fills `results`."""
        source, target = self.sides
        compared = []
        for start, part in tasks.run("compared", self._compared, len(source), rows_of_span(len(source))):
            self._store(results, 0, source, start, part)
            compared.append(part)

        merged = partial(self._merged, compared)
        for start, part in tasks.run("merged", merged, len(target), ROWS_MERGED, resumable=False):
            self._store(results, 1, target, start, part)

    def _compared(self, start: int, stop: int) -> Arrays:
        """The neighbours of a span of sources, and the lists that all targets have of these sources."""
        source, target = self.sides
        target_lists = self._lists(1, len(target))
        neighbours = Neighbours.empty(stop - start, self._limits(0)[1])
        with product_precision(self.filter.precision), self._bar(stop - start) as bar:
            for first in range(start, stop, self.rows):
                queries = as_tensor(source.block(first, min(first + self.rows, stop)), self.device)
                lists = self._lists(0, len(queries))
                for column, candidates in self._blocks(target):
                    columns = slice(column, column + len(candidates))
                    for rows, products in self._products(queries, candidates):
                        lists.update(rows, products, column, by_row=True)
                        target_lists.update(columns, products, first + rows.start, by_row=False)
                    seen = len(queries) * columns.stop // len(target)
                    bar.update(first - start + seen - bar.n)

                settled = self._settled(0, source, first, lists, target, certain=True)
                neighbours.store(slice(first - start, first - start + len(queries)), settled)
                del queries, lists  # before the next ones are allocated

        # In slices, so that targets are merged without the lists of all the others.
        arrays = dict(neighbours._asdict())
        values, numbers = target_lists.arrays()
        for column in range(0, len(target), ROWS_MERGED):
            columns = slice(column, column + ROWS_MERGED)
            arrays[f"values-{column}"] = values[columns]
            arrays[f"candidates-{column}"] = numbers[columns]
        return arrays

    def _merged(self, compared: Sequence[Part], start: int, stop: int) -> Arrays:
        """The neighbours of a span of targets, from the lists of all spans of sources."""
        source, target = self.sides
        blocks = []
        for first in range(start, stop, ROWS_MERGED):
            lists = self._lists(1, min(ROWS_MERGED, stop - first))
            for part in compared:
                with opened(part) as arrays:
                    lists.merge(as_tensor(arrays[f"values-{first}"]), as_tensor(arrays[f"candidates-{first}"]))
            blocks.append(self._settled(1, target, first, lists, source, certain=True))
        return _joined(blocks)

    def by_cells(
        self,
        results: Sequence[Neighbours],
        probes: int,
        recall: float | None,
        tasks: SpanTasks,
    ) -> None:
        """Compares every vector with those in the `probes` nearest cells of the other side, or more for the `recall`."""
        layouts = []
        with product_precision(self.filter.precision):
            for side, name in zip(self.sides, SIDES, strict=True):
                layouts.append(lay_out(side, name, self.cells, tasks, self.tile))

        stage = tasks.stage
        if "probes" not in stage.state:
            if recall is not None:
                probes = self._enough_probes(layouts, probes, recall, tasks)
            stage.update(probes=probes)
        probes = stage.state["probes"]

        for direction, name in enumerate(SIDES):
            queries = layouts[direction].vectors
            candidates = layouts[1 - direction]
            work = partial(self._probed, direction, queries, candidates, probes)
            for start, part in tasks.run(f"neighbours-of-{name}", work, len(queries), ROWS_PROBED):
                self._store(results, direction, queries, start, part)

    def _probed(
        self,
        direction: int,
        queries: Vectors,
        candidates: Cells,
        probes: int,
        start: int,
        stop: int,
    ) -> Arrays:
        """The neighbours of a span of queries in their nearest cells."""
        blocks = []
        with self._bar(stop - start) as bar:
            for first in range(start, stop, self.rows):
                block = queries.block(first, min(first + self.rows, stop), queries.kind)
                lists = self._probe(direction, block, candidates, probes)
                blocks.append(self._settled(direction, queries, first, lists, candidates.vectors, certain=False))
                bar.update(len(block))
                del block, lists  # before the next ones are allocated
        return _joined(blocks)

    def _store(
        self,
        results: Sequence[Neighbours],
        direction: int,
        queries: Vectors,
        start: int,
        part: Part,
    ) -> None:
        """Writes the neighbours of a span of queries."""
        with opened(part) as arrays:
            neighbours = Neighbours(arrays["similarities"], arrays["indices"])
        positions = np.arange(start, start + len(neighbours.indices))
        results[direction].store(queries.labels(positions), neighbours)

    def _probe(self, direction: int, block: np.ndarray, candidates: Cells, probes: int) -> TopK:
        """The best candidates of some queries in their nearest cells."""
        lists = self._lists(direction, len(block))
        with product_precision(self.filter.precision):
            probe_cells(as_tensor(block, self.device), candidates, probes, lists, self.tile)
        return lists

    def _enough_probes(self, layouts: Sequence[Cells], probes: int, recall: float, tasks: SpanTasks) -> int:
        """The number of cells in which a sample of both sides finds that share of its true neighbours."""
        samples = []
        for direction, side in enumerate(self.sides):
            block = side[self._sample(direction, seed=1)]
            samples.append((block, self.nearest(direction, block, tasks, "chosen").indices))

        while probes < self.cells:
            hits = []
            for direction, (block, true_indices) in enumerate(samples):
                candidates = layouts[1 - direction]
                lists = self._probe(direction, block, candidates, probes)
                neighbours = self._settle(direction, block, lists, candidates.vectors, certain=False)
                hits.append(_hits(neighbours.indices, true_indices))
            if np.concatenate(hits).mean() >= recall:
                break
            probes *= 2
        return min(probes, self.cells)

    def _sample(self, direction: int, seed: int) -> np.ndarray:
        return sample_rows(np.random.default_rng(seed), len(self.sides[direction]), RECALL_SAMPLE)

    def recall(self, results: Sequence[Neighbours], tasks: SpanTasks) -> tuple[float, float]:
        """Share of true neighbours of another random sample in the results, and half the width of its 95 % interval."""
        hits = []
        for direction, side in enumerate(self.sides):
            rows = self._sample(direction, seed=0)
            true_neighbours = self.nearest(direction, side[rows], tasks, "measured")
            indices = results[direction].indices[side.labels(rows)]
            hits.append(_hits(indices, true_neighbours.indices))
        shares = np.concatenate(hits)
        margin = 1.96 * shares.std() / np.sqrt(len(shares))
        return float(shares.mean()), float(margin)

    def nearest(
        self,
        direction: int,
        block: np.ndarray,
        tasks: SpanTasks | None = None,
        name: str = "",
    ) -> Neighbours:
        """Exact neighbours of some float32 vectors; `tasks` divide the candidates under a name."""
        candidates = self.sides[1 - direction]
        lists = self._lists(direction, len(block))
        if tasks is None or not tasks.is_shared:
            self._list(direction, block, lists, 0, len(candidates))
        else:
            work = partial(self._listed, direction, block)
            for _, part in tasks.run(f"{name}-{SIDES[direction]}-sample", work, len(candidates), ROWS_LISTED):
                with opened(part) as arrays:
                    lists.merge(as_tensor(arrays["values"]), as_tensor(arrays["candidates"]))
        return self._settle(direction, block, lists, candidates, certain=True)

    def _listed(self, direction: int, block: np.ndarray, start: int, stop: int) -> Arrays:
        """The lists of some vectors of the candidates in a span."""
        lists = self._lists(direction, len(block))
        self._list(direction, block, lists, start, stop)
        values, candidates = lists.arrays()
        return {"values": values, "candidates": candidates}

    def _list(self, direction: int, block: np.ndarray, lists: TopK, start: int, stop: int) -> None:
        """Updates lists with the candidates in a span."""
        queries = as_tensor(block, self.device)
        with product_precision(self.filter.precision):
            for first, columns in self._blocks(self.sides[1 - direction], start, stop):
                for rows, products in self._products(queries, columns):
                    lists.update(rows, products, first, by_row=True)

    def _bar(self, total: int) -> tqdm:
        return tqdm(desc="neighbours", total=total, unit=" rows", unit_scale=True, disable=self.quiet)

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

    def _blocks(self, side: Vectors, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, torch.Tensor]]:
        """Position of the first vector of each block of candidates of a span, and the block."""
        stop = len(side) if stop is None else stop
        for first in range(start, stop, self.height):
            yield first, as_tensor(side.block(first, min(first + self.height, stop)), self.device)

    def _products(self, queries: torch.Tensor, candidates: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Tiles of similarities, with the queries of each."""
        for top in range(0, len(queries), self.height):
            rows = slice(top, min(top + self.height, len(queries)))
            yield rows, self.tile.product(queries[rows], candidates)

    def _settled(
        self,
        direction: int,
        queries: Vectors,
        start: int,
        lists: TopK,
        candidates: Vectors,
        *,
        certain: bool,
    ) -> Neighbours:
        """The neighbours of the queries from `start` on; `lists` are their candidates. For `certain` see `_settle`."""
        neighbours = Neighbours.empty(len(lists), lists.k)
        for first in range(0, len(lists), ROWS_SETTLED):
            chunk = lists[first : first + ROWS_SETTLED]
            positions = np.arange(start + first, start + first + len(chunk))
            settled = self._settle(direction, queries[positions], chunk, candidates, certain=certain)
            neighbours.store(slice(first, first + len(chunk)), settled)
        return neighbours

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


def _joined(blocks: Sequence[Neighbours]) -> Arrays:
    """The neighbours of all blocks, one after the other."""
    similarities, indices = zip(*blocks, strict=True)
    return {"similarities": np.concatenate(similarities), "indices": np.concatenate(indices)}


def _hits(indices: np.ndarray, true_indices: np.ndarray) -> np.ndarray:
    """The share of each row's true neighbours among its indices, `(rows,)`."""
    is_hit = (indices[:, :, None] == true_indices[:, None]).any(1)
    shares: np.ndarray = is_hit.mean(axis=1)
    return shares
