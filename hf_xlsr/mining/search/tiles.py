"""The best candidates from blocks of similarities, and their exact order."""

from __future__ import annotations

import numpy as np
import torch

from hf_xlsr.mining.search.vectors import Vectors, VectorStats, as_tensor, pair_products
from hf_xlsr.utils.devices import cpu_has_fast_bfloat16, resolve_device

GROUP = 32  # similarities that are represented by their maximum
LARGEST_STEP = 512
GROUPS_AT_ONCE = 2**12  # a MiB of similarities
ROUNDING = 2e-6  # of the product of the lengths: error bound of a float32 inner product


class Filter:
    """Precision of the first pass, bfloat16 if the CPU multiplies it in hardware, and its bounded error."""

    def __init__(self, device: str = "cpu") -> None:
        coarse = resolve_device(device).type == "cpu" and cpu_has_fast_bfloat16()
        self.device = device
        self.precision = "bf16" if coarse else "ieee"
        self.spare = 12 if coarse else 4
        self.step = LARGEST_STEP if coarse else GROUP

    def rounded(self, vectors: np.ndarray) -> np.ndarray:
        """Float32 vectors, rounded as the multiplication rounds them."""
        return vectors if self.precision == "ieee" else as_tensor(vectors).bfloat16().float().numpy()

    def slack(self, asking: VectorStats, other: VectorStats) -> float:
        r"""Largest error of the difference of two products of one vector.

        With `\hat x = x - r` for a rounded vector and `a, b` the sides' middles, the error of a product is
        `x y - \hat x \hat y = r_x b + a r_y + r_x (y - b) + (\hat x - a) r_y`. The first term is the same for
        all `y`; the second has a known range; the others are bounded by the products of the lengths.
        """
        rest = asking.residual * other.spread + (asking.spread + asking.residual) * other.residual
        return other.shift + 2 * rest + 4 * ROUNDING * asking.longest * other.longest


class Tile:
    """A reusable block of `size` times `size` similarities, padded to whole steps; has room for `cells` columns."""

    def __init__(self, size: int, filter_: Filter, cells: int = 1) -> None:
        self.size, self.device, self.step = size, filter_.device, filter_.step
        numbers = max(self._whole(size) ** 2, self.step * self._whole(cells))
        self._numbers = torch.empty(numbers, device=self.device)

    def height(self, width: int) -> int:
        """Number of rows of that many columns that fit."""
        return len(self._numbers) // self._whole(width) // self.step * self.step

    def product(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Inner products of each row with each column, padded with minus infinity."""
        height, width = self._height(len(rows)), self._whole(len(columns))
        padded = self._numbers[: height * width].view(height, width)
        torch.mm(_pad(rows, height), _pad(columns, width).T, out=padded)
        padded[len(rows) :] = -torch.inf
        padded[:, len(columns) :] = -torch.inf
        return padded

    def _height(self, count: int) -> int:
        """Rows after padding: few different numbers, as oneDNN compiles code for every shape and keeps it."""
        few = max(GROUP, 1 << (count - 1).bit_length())
        return min(few, self._whole(count)) if self.step > GROUP else self._whole(count)

    def _whole(self, count: int) -> int:
        return -(-count // self.step) * self.step


def _pad(vectors: torch.Tensor, count: int) -> torch.Tensor:
    return torch.nn.functional.pad(vectors, (0, 0, 0, count - len(vectors))) if count > len(vectors) else vectors


class TopK:
    """The best candidates of each query so far, best first; minus infinity where they are missing.

    Products have errors: `slack` is the largest of the difference of two. A candidate is skipped if `k` others are
    better by more than that, or if the list is full of better ones.
    """

    def __init__(self, values: torch.Tensor, candidates: torch.Tensor, k: int, slack: float) -> None:
        self.values, self.candidates, self.k, self.slack = values, candidates, k, slack

    def __getitem__(self, askers: slice) -> TopK:
        return TopK(self.values[askers], self.candidates[askers], self.k, self.slack)

    def __len__(self) -> int:
        return len(self.values)

    def update(self, askers: slice | torch.Tensor, tile: torch.Tensor, first: int, *, by_row: bool) -> None:
        """Merges a tile of similarities into the lists of its rows (or columns), the `askers`; `first` is a candidate.

        The maxima of groups rule out most of a tile. Members of a group are as many places apart as there are groups, so
        that maxima are taken over whole vectors of neighbouring numbers.
        """
        values = self.values[askers]
        count, listed = values.shape
        if by_row:
            groups = tile.view(len(tile), GROUP, -1)
            maxima = groups.amax(1)[:count]
        else:
            groups = tile.view(GROUP, -1, tile.shape[1])
            maxima = groups.amax(0).T[:count]
        floor = torch.maximum(values[:, -1], values[:, self.k - 1] - self.slack)
        over = maxima > floor[:, None]
        if maxima.shape[1] > listed and int(over.sum(1).max()) > listed:
            # Lists that are not full yet: the `listed` greatest maxima are candidates that are better than all in the
            # other groups.
            top = maxima.topk(listed, 1)
            floor = torch.maximum(floor, top.values[:, self.k - 1] - self.slack)
            who, place = (top.values > floor[:, None]).nonzero(as_tuple=True)
            group = top.indices[who, place]
        else:
            who, group = over.nonzero(as_tuple=True)
        for some, their in zip(who.split(GROUPS_AT_ONCE), group.split(GROUPS_AT_ONCE), strict=True):
            members = groups[some, :, their] if by_row else groups[:, their, some].T
            hit, member = (members > floor[some, None]).nonzero(as_tuple=True)
            if len(hit):
                self._merge(askers, some[hit], members[hit, member], first + member * maxima.shape[1] + their[hit])

    def merge(self, values: torch.Tensor, candidates: torch.Tensor) -> None:
        """Merges the lists that another process has of the same queries."""
        top = torch.cat([self.values, values.to(self.values.device)], 1).topk(self.values.shape[1], 1)
        names = torch.cat([self.candidates, candidates.to(self.values.device)], 1)
        self.values, self.candidates = top.values, names.gather(1, top.indices)

    def _merge(
        self, askers: slice | torch.Tensor, who: torch.Tensor, values: torch.Tensor, candidates: torch.Tensor
    ) -> None:
        """Merges candidates, ordered by query, into the lists."""
        touched, row, counts = torch.unique_consecutive(who, return_inverse=True, return_counts=True)
        place = torch.arange(len(who), device=who.device) - (counts.cumsum(0) - counts)[row]
        lists = touched + askers.start if isinstance(askers, slice) else askers[touched]
        width = self.values.shape[1]
        shape = (len(touched), width + int(counts.max()))
        pool = values.new_full(shape, -torch.inf)
        names = self.candidates.new_zeros(shape)
        pool[:, :width], names[:, :width] = self.values[lists], self.candidates[lists]
        pool[row, width + place], names[row, width + place] = values, candidates.int()
        top = pool.topk(width, 1)
        self.values[lists], self.candidates[lists] = top.values, names.gather(1, top.indices)


def settle(queries: np.ndarray, best: TopK, side: Vectors) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The `k` nearest of the lists, exactly, and the queries that may have nearer ones outside their lists."""
    values, found = best.values.cpu().numpy(), best.candidates.cpu().numpy().astype(np.int64)
    near = values >= values[:, best.k - 1, None] - best.slack
    near &= values > -np.inf
    rows, places = near.nonzero()
    exact = np.full(values.shape, -np.inf, np.float32)
    exact[rows, places] = pair_products(queries, rows, side, found[rows, places])
    labels = side.labels(found)
    order = np.lexsort((labels, -exact), axis=-1)[:, : best.k]
    full = near[:, -1] & (values.shape[1] < len(side))
    return np.take_along_axis(exact, order, 1), np.take_along_axis(labels, order, 1), np.flatnonzero(full)


def search_down_to(
    queries: np.ndarray, floor: np.ndarray, side: Vectors, k: int, tile: Tile
) -> tuple[np.ndarray, np.ndarray]:
    """The `k` nearest if `k` have float32 products of `floor` or above, however many near ties there are."""
    rows = np.empty(0, np.int64)
    exact, labels = np.empty(0, np.float32), np.empty(0, np.int64)
    asking, floors = as_tensor(queries, tile.device), as_tensor(floor.astype(np.float32), tile.device)[:, None]
    columns = tile.height(len(queries))
    for start in range(0, len(side), columns):
        candidates = as_tensor(side.block(start, start + columns), tile.device)
        products = tile.product(asking, candidates)[: len(queries), : len(candidates)]
        row, column = (found.cpu().numpy() for found in (products >= floors).nonzero(as_tuple=True))
        rows = np.concatenate([rows, row])
        exact = np.concatenate([exact, pair_products(queries, row, side, column + start)])
        labels = np.concatenate([labels, side.labels(column + start)])
        order = np.lexsort((labels, -exact, rows))
        rows, exact, labels = rows[order], exact[order], labels[order]
        kept = np.arange(len(rows)) - np.searchsorted(rows, rows) < k
        rows, exact, labels = rows[kept], exact[kept], labels[kept]
    return exact.reshape(-1, k), labels.reshape(-1, k)
