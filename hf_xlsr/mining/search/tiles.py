"""The best candidates from blocks of similarities, and their exact order."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hf_xlsr.mining.search.vectors import Vectors, VectorStats, as_tensor, pair_products
from hf_xlsr.utils.devices import cpu_has_fast_bfloat16, resolve_device
from hf_xlsr.utils.errors import XlsrError

GROUP = 32  # similarities that are represented by their maximum
LARGEST_STEP = 512
GROUPS_AT_ONCE = 2**12  # a MiB of similarities
ROUNDING = 2e-6  # of the product of the lengths: error bound of a float32 inner product


class Filter:
    """Precision of the first pass, bfloat16 if the CPU multiplies it in hardware, and its bounded error.

    `spare` is how many candidates more than `k` are listed for each query, `step` what the sizes of a tile are
    multiples of.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.precision = "ieee"
        self.spare = 4
        self.step = GROUP

        if resolve_device(device).type == "cpu" and cpu_has_fast_bfloat16():
            self.precision = "bf16"
            self.spare = 12
            self.step = LARGEST_STEP

    def __reduce__(self) -> tuple[Any, ...]:
        return _same_filter, (self.device, self.precision)

    def rounded(self, vectors: np.ndarray) -> np.ndarray:
        """Float32 vectors, rounded as the multiplication rounds them."""
        if self.precision == "ieee":
            return vectors
        return as_tensor(vectors).bfloat16().float().numpy()

    def slack(self, queries: VectorStats, candidates: VectorStats) -> float:
        r"""Largest error of the difference of two products of one query.

        With `\hat x = x - r` for a rounded vector and `a, b` the sides' middles, the error of a product is
        `x y - \hat x \hat y = r_x b + a r_y + r_x (y - b) + (\hat x - a) r_y`. The first term is the same for
        all `y`; the second has a known range; the others are bounded by the products of the lengths.
        """
        query_error = queries.residual * candidates.spread
        candidate_error = (queries.spread + queries.residual) * candidates.residual
        sum_error = ROUNDING * queries.longest * candidates.longest  # of a product of rounded vectors
        return candidates.shift + 2 * (query_error + candidate_error) + 4 * sum_error


def _same_filter(device: str, precision: str) -> Filter:
    """The filter of another process, which must have the precision of this machine."""
    own = Filter(device)
    if own.precision != precision:
        raise XlsrError(
            f"The search began in {precision}, {platform.node()} searches in {own.precision}. Use machines of one kind."
        )
    return own


class Tile:
    """A reusable block of `size` times `size` similarities, padded to whole steps; has room for `cells` columns."""

    def __init__(self, size: int, filter_: Filter, cells: int = 1) -> None:
        self.size = size
        self.filter = filter_
        self.cells = cells
        self.device = filter_.device
        self.step = filter_.step

        count = max(self._whole_steps(size) ** 2, self.step * self._whole_steps(cells))
        self._buffer = torch.empty(count, device=self.device)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tile, (self.size, self.filter, self.cells)

    def height(self, width: int) -> int:
        """Number of rows of that many columns that fit."""
        return len(self._buffer) // self._whole_steps(width) // self.step * self.step

    def product(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Inner products of each row with each column, padded with minus infinity; valid until the next call."""
        height = self._padded_height(len(rows))
        width = self._whole_steps(len(columns))
        products = self._buffer[: height * width].view(height, width)

        torch.mm(_pad(rows, height), _pad(columns, width).T, out=products)
        products[len(rows) :] = -torch.inf
        products[:, len(columns) :] = -torch.inf
        return products

    def _padded_height(self, count: int) -> int:
        """Rows after padding: few different numbers, as oneDNN compiles code for every shape and keeps it."""
        height = self._whole_steps(count)
        if self.step > GROUP:
            power_of_two = 1 << (count - 1).bit_length()
            height = min(height, max(GROUP, power_of_two))
        return height

    def _whole_steps(self, count: int) -> int:
        """The next multiple of the step."""
        return -(-count // self.step) * self.step


def _pad(vectors: torch.Tensor, count: int) -> torch.Tensor:
    """The vectors, followed by zeros if they are fewer than `count`."""
    missing = count - len(vectors)
    if missing == 0:
        return vectors
    return torch.nn.functional.pad(vectors, (0, 0, 0, missing))


@dataclass
class TopK:
    """The best candidates of each query so far, best first; minus infinity where they are missing.

    Products have errors: `slack` is the largest of the difference of two. A candidate is skipped if `k` others are
    better by more than that, or if the list is full of better ones.

    Attributes:
        values: Similarities, `(queries, listed)`, float32, where `listed` is at least `k`.
        candidates: Positions of the candidates, `(queries, listed)`, int32.
        k: Number of candidates that are wanted of each query.
        slack: Largest error of the difference of two similarities of a query.
    """

    values: torch.Tensor
    candidates: torch.Tensor
    k: int
    slack: float

    @classmethod
    def empty(
        cls,
        queries: int,
        listed: int,
        k: int,
        slack: float,
        device: str | torch.device,
    ) -> TopK:
        """Lists without a candidate."""
        values = torch.full((queries, listed), -torch.inf, device=device)
        candidates = torch.zeros((queries, listed), dtype=torch.int32, device=device)
        return cls(values, candidates, k, slack)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Values and candidates as NumPy arrays; on the CPU they share the lists' memory."""
        return self.values.cpu().numpy(), self.candidates.cpu().numpy()

    def __getitem__(self, queries: slice) -> TopK:
        return TopK(self.values[queries], self.candidates[queries], self.k, self.slack)

    def __len__(self) -> int:
        return len(self.values)

    def update(
        self,
        queries: slice | torch.Tensor,
        tile: torch.Tensor,
        first: int,
        *,
        by_row: bool,
    ) -> None:
        """Merges a tile of similarities into the lists of some queries, which are its rows, or else its columns.

        The tile's first candidate has the position `first`. The maxima of groups rule out most of a tile. Members of a
        group are as far apart as there are groups, so that maxima are taken over whole vectors of neighbouring numbers.
        """
        values = self.values[queries]
        count = len(values)
        if by_row:
            groups = tile.view(len(tile), GROUP, -1)
            maxima = groups.amax(1)[:count]
        else:
            groups = tile.view(GROUP, -1, tile.shape[1])
            maxima = groups.amax(0).T[:count]
        group_count = maxima.shape[1]
        floor, query, group = self._groups_to_search(values, maxima)

        for start in range(0, len(query), GROUPS_AT_ONCE):
            chunk = slice(start, start + GROUPS_AT_ONCE)
            chunk_query = query[chunk]
            chunk_group = group[chunk]
            members = groups[chunk_query, :, chunk_group] if by_row else groups[:, chunk_group, chunk_query].T
            hit, member = (members > floor[chunk_query, None]).nonzero(as_tuple=True)
            if len(hit):
                candidates = first + member * group_count + chunk_group[hit]
                self._insert(queries, chunk_query[hit], members[hit, member], candidates)

    def _groups_to_search(
        self, values: torch.Tensor, maxima: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The groups that may hold a better candidate for a list, by their maxima, `(queries, groups)`.

        Returns the similarity that a candidate of each query must exceed, and the query and the group of each hit.
        """
        listed = values.shape[1]
        floor = torch.maximum(values[:, -1], values[:, self.k - 1] - self.slack)
        above_floor = maxima > floor[:, None]
        if maxima.shape[1] > listed and int(above_floor.sum(1).max()) > listed:
            # Lists that are not full yet: the `listed` greatest maxima are candidates that are better than all in the
            # other groups.
            top = maxima.topk(listed, 1)
            floor = torch.maximum(floor, top.values[:, self.k - 1] - self.slack)
            query, rank = (top.values > floor[:, None]).nonzero(as_tuple=True)
            return floor, query, top.indices[query, rank]

        query, group = above_floor.nonzero(as_tuple=True)
        return floor, query, group

    def merge(self, values: torch.Tensor, candidates: torch.Tensor) -> None:
        """Merges lists of the same queries, with other candidates."""
        listed = self.values.shape[1]
        device = self.values.device
        all_values = torch.cat([self.values, values.to(device)], 1)
        all_candidates = torch.cat([self.candidates, candidates.to(device)], 1)
        top = all_values.topk(listed, 1)
        self.values = top.values
        self.candidates = all_candidates.gather(1, top.indices)

    def _insert(
        self,
        queries: slice | torch.Tensor,
        query: torch.Tensor,
        values: torch.Tensor,
        candidates: torch.Tensor,
    ) -> None:
        """Inserts candidates into the lists; `query` numbers the query of each among `queries`, and ascends."""
        touched, row, counts = torch.unique_consecutive(query, return_inverse=True, return_counts=True)
        lists = touched + queries.start if isinstance(queries, slice) else queries[touched]

        # A row for each list: the list, then its new candidates side by side.
        listed = self.values.shape[1]
        new_before = counts.cumsum(0) - counts
        column = torch.arange(len(query), device=query.device) - new_before[row] + listed
        padding = (0, int(counts.max()))
        row_values = torch.nn.functional.pad(self.values[lists], padding, value=-torch.inf)
        row_values[row, column] = values
        row_candidates = torch.nn.functional.pad(self.candidates[lists], padding)
        row_candidates[row, column] = candidates.int()

        top = row_values.topk(listed, 1)
        self.values[lists] = top.values
        self.candidates[lists] = row_candidates.gather(1, top.indices)


def settle(queries: np.ndarray, best: TopK, side: Vectors) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The `k` nearest of the lists, exactly, and the queries that may have nearer ones outside their lists.

    Returns:
        Similarities (float32) and labels (int64) of the nearest, `(queries, k)` each, best first and ties by label;
        and the numbers of the doubtful queries.
    """
    values, positions = best.arrays()
    candidates = positions.astype(np.int64)
    floor = values[:, best.k - 1, None] - best.slack
    is_near = (values >= floor) & (values > -np.inf)

    rows, columns = is_near.nonzero()
    exact = np.full(values.shape, -np.inf, np.float32)
    exact[rows, columns] = pair_products(queries, rows, side, candidates[rows, columns])
    labels = side.labels(candidates)
    order = np.lexsort((labels, -exact), axis=-1)[:, : best.k]
    similarities = np.take_along_axis(exact, order, 1)
    nearest_labels = np.take_along_axis(labels, order, 1)

    # Where even the last of a list is near, others that the list could not hold may be as well.
    doubtful = np.empty(0, np.int64)
    if values.shape[1] < len(side):
        doubtful = np.flatnonzero(is_near[:, -1])
    return similarities, nearest_labels, doubtful


def search_down_to(
    queries: np.ndarray,
    floor: np.ndarray,
    side: Vectors,
    k: int,
    tile: Tile,
) -> tuple[np.ndarray, np.ndarray]:
    """The `k` nearest if `k` have float32 products of `floor` or above, however many near ties there are."""
    query_tensor = as_tensor(queries, tile.device)
    floors = as_tensor(floor.astype(np.float32), tile.device)[:, None]
    best = np.empty(0, [("query", np.int64), ("exact", np.float32), ("label", np.int64)])  # at most `k` of a query

    step = tile.height(len(queries))
    for start in range(0, len(side), step):
        candidates = as_tensor(side.block(start, start + step), tile.device)
        products = tile.product(query_tensor, candidates)[: len(queries), : len(candidates)]
        rows, columns = (products >= floors).nonzero().cpu().numpy().T
        positions = start + columns

        near = np.empty(len(rows), best.dtype)
        near["query"] = rows
        near["exact"] = pair_products(queries, rows, side, positions)
        near["label"] = side.labels(positions)

        best = _best_of_each_query(np.concatenate([best, near]), k)
    return best["exact"].reshape(-1, k), best["label"].reshape(-1, k)


def _best_of_each_query(candidates: np.ndarray, k: int) -> np.ndarray:
    """The `k` candidates with the highest products of each query, sorted by query; ties go to the lower label."""
    order = np.lexsort((candidates["label"], -candidates["exact"], candidates["query"]))
    candidates = candidates[order]

    first_of_query = np.searchsorted(candidates["query"], candidates["query"])
    rank = np.arange(len(candidates)) - first_of_query
    return candidates[rank < k]
