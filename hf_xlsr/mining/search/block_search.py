"""Resumable search of two sides, block by block, within a memory budget."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from tqdm.auto import tqdm

from hf_xlsr.mining.search.cells import Cells, lay_out, probe_cells
from hf_xlsr.mining.search.tiles import ROUNDING, Filter, Tile, TopK, search_down_to, settle
from hf_xlsr.mining.search.vectors import Vectors, as_tensor, middle, scan
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
FOUND = "found"  # folder of what several processes found


class Neighbours(NamedTuple):
    """Similarities (float32) and indices (int64) of one side's neighbours, `(rows, k)` each."""

    similarities: np.ndarray
    indices: np.ndarray

    @classmethod
    def empty(cls, rows: int, k: int) -> Neighbours:
        return cls(np.empty((rows, k), np.float32), np.empty((rows, k), np.int64))


def choose_sizes(
    matrices: Sequence[np.ndarray],
    listed: tuple[int, int],
    method: str,
    cells: int,
    probes: int,
    memory: int | None,
    in_files: bool,
) -> tuple[int, int]:
    """Largest `SIZES` whose arrays fit a memory budget; half of the machine's available memory if None.

    `listed` are the numbers of neighbours that are returned and that are listed for each row. With `in_files`, arrays
    that grow with the sides take no memory.
    """
    if memory is None:
        memory = psutil.virtual_memory().available // 2
    counts, width, (k, longer) = [len(matrix) for matrix in matrices], matrices[0].shape[1], listed
    itemsize = 4 if method == "exact" else max(2 if matrix.dtype == np.float16 else 4 for matrix in matrices)
    rows, most = sum(counts), max(counts)
    # One after the other: fingerprints, training, sorting by cell, blocks.
    phases, fixed, probing = [24 * most], 0, 0
    growing = 12 * k * rows + (8 * longer * counts[1] if method == "exact" else width * itemsize * rows)
    if method == "ivf":
        fixed, probing = 4 * rows, (8 * width + 2048) * cells
        phases += [48 * width * cells, 16 * most]
    needed = 0
    for block, tile in SIZES[method]:
        height = min(block, most)
        blocks = width * (itemsize * height + 16 * tile) + 16 * height * longer + 5 * tile * tile
        blocks += 512 * tile * longer + probing + (16 * height * probes if probing else 0)
        needed = fixed + max(*phases, blocks) + (0 if in_files else growing)
        if needed <= memory:
            return block, tile
    raise XlsrError(f"`memory` must be at least {-(-needed // 1_000_000)}MB for this search, got {memory:,} bytes.")


class BlockSearch:
    """Searches the `k` nearest neighbours of two sides (source and target) in each other.

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
        self.k, self.filter, self.stage, self.cells = k, filter_, stage, cells
        self.index, self.processes = process
        # Progress and unfinished lists of this process.
        self.own = stage if stage.path is None or self.processes == 1 else Stage(stage.path / f"process-{self.index}")
        self.rows, self.height = sizes  # queries at a time, and rows and columns of a tile
        self.device, self.quiet = filter_.device, not show_progress_bar
        middles = [middle(matrix) for matrix in matrices]
        self.stats = [
            scan(matrix, name, k, (own, other), filter_.rounded)
            for matrix, name, own, other in zip(matrices, SIDES, middles, middles[::-1], strict=True)
        ]
        self.sides = [
            Vectors(matrix, found.kept(len(matrix))) for matrix, found in zip(matrices, self.stats, strict=True)
        ]
        self.tile = Tile(self.height, filter_, cells)

    def run(self, method: str, results: Sequence[Neighbours], probes: int, recall: float | None) -> None:
        """Fills `results`; of several processes, only those of the first."""
        if method == "exact":
            self.exact(results)
        else:
            self.by_cells(results, probes, recall)

    def exact(self, results: Sequence[Neighbours]) -> None:
        """Compares every source with every target, once for both directions, and fills `results`."""
        source, target = self.sides
        done = self.own.state.get("progress", 0)
        kept = self._column_arrays(done)
        columns = self._best(1, *(as_tensor(array, self.device) for array in kept))
        with product_precision(self.filter.precision), self._bar(len(source), done) as bar:
            for start, following in self._share(len(source), done):
                queries = as_tensor(source.block(start, start + self.rows), self.device)
                lists = self._lists(0, len(queries))
                for first, candidates in self._blocks(target):
                    askers = slice(first, first + len(candidates))
                    for part, products in self._products(queries, candidates):
                        lists.update(part, products, first, by_row=True)
                        columns.update(askers, products, start + part.start, by_row=False)
                    bar.update(start + len(queries) * askers.stop // len(target) - bar.n)
                self._finish(results, 0, source, start, lists, target)
                self._keep(columns, following)
                del queries, lists  # before the next ones are allocated
            if self.processes > 1:
                self._save(f"columns-{self.index}", values=columns.values, candidates=columns.candidates)
                if self.index:
                    return
                self._collect(results, 0)
                for index in range(1, self.processes):
                    columns.merge(*(torch.from_numpy(array) for array in self._load(f"columns-{index}").values()))
            self._finish(results, 1, target, 0, columns, source, shared=False)

    def by_cells(self, results: Sequence[Neighbours], probes: int, recall: float | None = None) -> None:
        """Compares every vector with those in the `probes` nearest cells of the other side, or more for the `recall`."""
        done, before = self.own.state.get("progress", 0), 0
        if self.index:
            probes = self.stage.wait("probes")
        with product_precision(self.filter.precision), self._bar(sum(map(len, self.sides)), done) as bar:
            laid = [
                lay_out(side, name, self.cells, self.stage, self.tile)
                for side, name in zip(self.sides, SIDES, strict=True)
            ]
            if not self.index:
                given = probes if recall is None else None
                probes = self.stage.state.get("probes") or given or self._enough_probes(laid, probes, recall or 1.0)
                self.stage.update(probes=probes)
            for direction, (asking, other) in enumerate((laid, laid[::-1])):
                queries = asking.vectors
                for start, following in self._share(len(queries), max(0, done - before)):
                    block = queries.block(start, start + self.rows, queries.kind)
                    lists = self._probe(direction, block, other, probes)
                    self._finish(results, direction, queries, start, lists, other.vectors, certain=False)
                    self.own.update(progress=before + following)
                    bar.update(len(block))
                    del block, lists  # before the next ones are allocated
                before += len(queries)
        if self.processes > 1 and not self.index:
            self._collect(results, 0)
            self._collect(results, 1)

    def _share(self, count: int, done: int) -> Iterator[tuple[int, int]]:
        """The starts of this process's blocks of `count` queries that are not done, each with the start that follows."""
        stride = self.rows * self.processes
        for start in range(max(done, self.index * self.rows), count, stride):
            yield start, min(start + stride, count)

    def _save(self, name: str, **parts: Any) -> None:
        assert self.stage.path is not None
        (self.stage.path / FOUND).mkdir(parents=True, exist_ok=True)
        arrays = {key: torch.as_tensor(part).cpu().numpy() for key, part in parts.items()}
        save_arrays(self.stage.path / FOUND / f"{name}.npz", **arrays)

    def _load(self, name: str) -> dict[str, np.ndarray]:
        """What a process has saved, or will have."""
        assert self.stage.path is not None
        path = self.stage.path / FOUND / f"{name}.npz"
        while not path.exists():
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return load_arrays(path)

    def _collect(self, results: Sequence[Neighbours], direction: int) -> None:
        """Fills `results` with the blocks of all processes."""
        for start in range(0, len(self.sides[direction]), self.rows):
            rows, *found = self._load(f"{direction}-{start}").values()
            for result, values in zip(results[direction], found, strict=True):
                result[rows] = values

    def _probe(self, direction: int, block: np.ndarray, other: Cells, probes: int) -> TopK:
        lists = self._lists(direction, len(block))
        probe_cells(as_tensor(block, self.device), other, probes, lists, self.tile, self.height)
        return lists

    def _enough_probes(self, laid: list[Cells], probes: int, recall: float) -> int:
        """The number of cells in which a sample of both sides finds that share of its true neighbours."""
        samples = []
        for direction, other in enumerate(laid[::-1]):
            block = self.sides[direction][self._sample(direction, seed=1)]
            samples.append((direction, other, block, self.nearest(direction, block).indices))
        while probes < self.cells:
            found = []
            for direction, other, block, true in samples:
                lists = self._probe(direction, block.astype(other.vectors.kind, copy=False), other, probes)
                indices = self._settle(direction, block, lists, other.vectors, certain=False).indices
                found.append(_hits(indices, true))
            if np.concatenate(found).mean() >= recall:
                break
            probes *= 2
        return min(probes, self.cells)

    def _sample(self, direction: int, seed: int) -> np.ndarray:
        count = len(self.sides[direction])
        return np.sort(np.random.default_rng(seed).choice(count, min(RECALL_SAMPLE, count), replace=False))

    def recall(self, results: Sequence[Neighbours]) -> tuple[float, float]:
        """Share of true neighbours of another random sample in the results, and half the width of its 95 % interval."""
        hits = []
        for direction, (side, result) in enumerate(zip(self.sides, results, strict=True)):
            rows = self._sample(direction, seed=0)
            hits.append(_hits(result.indices[side.labels(rows)], self.nearest(direction, side[rows]).indices))
        shares = np.concatenate(hits)
        return float(shares.mean()), float(1.96 * shares.std() / np.sqrt(len(shares)))

    def nearest(self, direction: int, block: np.ndarray) -> Neighbours:
        """Exact neighbours of some float32 vectors."""
        candidates = self.sides[1 - direction]
        queries, lists = as_tensor(block, self.device), self._lists(direction, len(block))
        with product_precision(self.filter.precision):
            for first, columns in self._blocks(candidates):
                for part, products in self._products(queries, columns):
                    lists.update(part, products, first, by_row=True)
        return self._settle(direction, block, lists, candidates, certain=True)

    def _bar(self, total: int, done: int) -> tqdm:
        return tqdm(desc="neighbours", total=total, initial=done, unit=" rows", unit_scale=True, disable=self.quiet)

    def _lists(self, direction: int, askers: int) -> TopK:
        shape = (askers, self._listed(direction))
        values = torch.full(shape, -torch.inf, device=self.device)
        return self._best(direction, values, torch.zeros(shape, dtype=torch.int32, device=self.device))

    def _best(self, direction: int, values: torch.Tensor, candidates: torch.Tensor) -> TopK:
        slack = self.filter.slack(self.stats[direction], self.stats[1 - direction])
        return TopK(values, candidates, min(self.k, len(self.sides[1 - direction])), slack)

    def _listed(self, direction: int) -> int:
        """Length of a list: `k` and some more, so that rounding hides none."""
        return min(self.k + self.filter.spare, len(self.sides[1 - direction]))

    def _blocks(self, side: Vectors) -> Iterator[tuple[int, torch.Tensor]]:
        for first in range(0, len(side), self.height):
            yield first, as_tensor(side.block(first, first + self.height), self.device)

    def _products(self, queries: torch.Tensor, candidates: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Tiles of similarities, with the queries of each."""
        for top in range(0, len(queries), self.height):
            part = slice(top, min(top + self.height, len(queries)))
            yield part, self.tile.product(queries[part], candidates)

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
        """Computes and stores the neighbours of the queries from `start` on; `lists` are their candidates."""
        shared = shared and self.processes > 1
        stored = Neighbours.empty(len(lists), lists.k) if shared else results[direction]
        for first in range(0, len(lists), ROWS_SETTLED):
            some = lists[first : first + ROWS_SETTLED]
            rows = np.arange(start + first, start + first + len(some))
            found = self._settle(direction, queries[rows], some, candidates, certain=certain)
            places = rows - start if shared else queries.labels(rows)
            for array, values in zip(stored, found, strict=True):
                array[places] = values
        if shared:
            rows = queries.labels(np.arange(start, start + len(lists)))
            self._save(f"{direction}-{start}", rows=rows, **stored._asdict())

    def _settle(
        self, direction: int, block: np.ndarray, lists: TopK, candidates: Vectors, *, certain: bool
    ) -> Neighbours:
        similarities, indices, doubtful = settle(block, lists, candidates)
        if not certain:
            # Cells that hold fewer than `k` vectors together.
            missing = np.flatnonzero(similarities[:, -1] == -np.inf)
            if missing.size:
                similarities[missing], indices[missing] = self.nearest(direction, block[missing])
            return Neighbours(similarities, indices)
        with product_precision("ieee"):
            for first in range(0, len(doubtful), self.height):
                rows = doubtful[first : first + self.height]
                queries = block[rows]
                lengths = self.stats[1 - direction].longest * np.linalg.norm(queries, axis=1)
                floor = similarities[rows, -1] - ROUNDING * lengths
                similarities[rows], indices[rows] = search_down_to(queries, floor, candidates, lists.k, self.tile)
        return Neighbours(similarities, indices)

    def _column_arrays(self, done: int) -> list[np.ndarray]:
        """The targets' lists after that many sources."""
        shape, arrays = (len(self.sides[1]), self._listed(1)), []
        for name, kind, fill in (("values", np.float32, -np.inf), ("candidates", np.int32, 0)):
            arrays.append(self.own.array(name, shape, kind))
            arrays[-1][:] = self.own.array(f"{name}-{done}", shape, kind) if done else fill
        return arrays

    def _keep(self, columns: TopK, done: int) -> None:
        """Saves the targets' lists after that many sources, and removes those before."""
        if self.own.path is None:
            return
        names = [f"{name}-{done}" for name in ("values", "candidates")]
        for name, tensor in zip(names, (columns.values, columns.candidates), strict=True):
            array = tensor.cpu().numpy()
            self.own.array(name, array.shape, array.dtype.type)[:] = array
        self.own.update(progress=done)
        self.own.clear([*names, "values", "candidates", *RESULTS])


def _hits(found: np.ndarray, true: np.ndarray) -> np.ndarray:
    """The share of each row's true neighbours among those found, `(rows,)`."""
    return (found[:, :, None] == true[:, None]).any(1).mean(1)
