"""Exact nearest neighbours by inner product, with ties that do not depend on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from hf_xlsr.utils.errors import XlsrError, require_positive
from hf_xlsr.utils.vectors import as_vectors

# A float32 product depends on where a vector is in a block: equal candidates may differ in the last bits. A few more
# neighbours than asked for are scored again in float64; a row whose last one could still be tied with the k-th is
# searched again, with more.
SPARE = 4
ROUNDING = 2e-6  # of the product of the lengths: error bound of a float32 inner product
QUERIES_AT_ONCE, CANDIDATES_AT_ONCE = 2**10, 2**14
FOUND_AT_ONCE = 2**20  # candidates of all queries that are scored together, some 45 bytes each
NUMBERS_AT_ONCE = 2**17  # float64 numbers gathered for scoring at a time: a few MiB, which stay in the cache


@contextmanager
def product_precision(name: str) -> Iterator[None]:
    """Sets the precision of float32 matrix products to `ieee` or `bf16` (CPU only), whatever the user's setting."""
    backends: Any = torch.backends
    settings = (backends.mkldnn.matmul, backends.cuda.matmul)
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting, value in zip(settings, (name, "ieee"), strict=True):
            setting.fp32_precision = value
        yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            setting.fp32_precision = value


def nearest_neighbours(queries: np.ndarray, candidates: np.ndarray, k: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The `k` candidates of largest inner product for each query (cosine, for vectors of length 1).

    Products in float32 pick the candidates, which are scored again in float64 and rounded to float32. Results
    therefore depend neither on the other queries nor on the order of the candidates, and a tie, meaning equal float32
    similarities, goes to the lowest index.

    Returns:
        Similarities, float32, and candidate indices, int64, both `(n, min(k, m))` for `n` queries and `m` candidates,
        best first.

    Examples:
        >>> similarities, indices = nearest_neighbours(np.eye(2), np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]), k=2)
        >>> indices.tolist()
        [[1, 2], [0, 1]]
    """
    queries, candidates = as_vectors(queries, "queries"), as_vectors(candidates, "candidates")
    require_positive("k", k)
    require_positive("number of candidates", len(candidates))
    check_widths(queries, candidates)
    k = min(k, len(candidates))
    similarities = np.empty((len(queries), k), np.float32)
    indices = np.empty((len(queries), k), np.int64)
    longest = float(np.sqrt(np.einsum("nd,nd->n", candidates, candidates).max()))
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        pending = np.arange(start, min(start + QUERIES_AT_ONCE, len(queries)))
        width = min(k + SPARE, len(candidates))
        while pending.size:
            again = []
            # If all candidates are alike, all of them are scored, for a few queries at a time.
            step = max(1, FOUND_AT_ONCE // width)
            for part in (pending[first : first + step] for first in range(0, pending.size, step)):
                rows = queries[part]
                found_similarities, found = _largest(rows, candidates, width)
                places = np.repeat(np.arange(len(rows)), width)
                exact = pair_products(rows, places, candidates, found.ravel()).reshape(found.shape)
                order = np.lexsort((found, -exact), axis=-1)[:, :k]
                similarities[part] = np.take_along_axis(exact, order, axis=1)
                indices[part] = np.take_along_axis(found, order, axis=1)
                # A candidate that was not found is at or below the last one found, up to rounding.
                unsure = ROUNDING * longest * np.linalg.norm(rows, axis=1)
                again.append(part[similarities[part, -1] <= found_similarities[:, -1] + unsure])
            if width == len(candidates):
                break
            pending = np.concatenate(again)
            width = min(4 * width, len(candidates))
    return similarities, indices


def _largest(queries: np.ndarray, candidates: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The `width` largest products of each query, in float32, and their candidates."""
    values = torch.empty((len(queries), 0))
    indices = torch.empty((len(queries), 0), dtype=torch.int64)
    with product_precision("ieee"):
        for start in range(0, len(candidates), CANDIDATES_AT_ONCE):
            products = torch.from_numpy(queries) @ torch.from_numpy(candidates[start : start + CANDIDATES_AT_ONCE]).T
            top = products.topk(min(width, products.shape[1]), dim=1)
            values, indices = torch.cat([values, top.values], 1), torch.cat([indices, top.indices + start], 1)
            values, order = values.topk(min(width, values.shape[1]), dim=1)
            indices = indices.gather(1, order)
    return values.numpy(), indices.numpy()


def check_widths(source: np.ndarray, target: np.ndarray) -> None:
    if source.shape[1] != target.shape[1]:
        raise XlsrError(f"Vectors must be equally wide, got {source.shape[1]} and {target.shape[1]}: use one encoder.")


def pair_products(queries: np.ndarray, rows: np.ndarray, candidates: Any, columns: np.ndarray) -> np.ndarray:
    """Inner products of pairs, summed in float64: each float32 depends only on its two vectors."""
    products = np.empty(len(rows), np.float32)
    # Candidates that are near each other in a file are read together.
    order = np.argsort(columns, kind="stable")
    step = max(1, NUMBERS_AT_ONCE // max(1, queries.shape[1]))
    for start in range(0, len(rows), step):
        part = order[start : start + step]
        # Not a matrix product: the order of summation must not depend on the other pairs.
        products[part] = (queries[rows[part]].astype(np.float64) * candidates[columns[part]]).sum(axis=1)
    return products
