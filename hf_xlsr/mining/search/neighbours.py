"""Exact nearest neighbours by inner product, with ties that do not depend on the machine."""

from __future__ import annotations

from typing import Protocol

import faiss
import numpy as np

from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.vectors import as_vectors

# FAISS rounds in float32 and its rounding depends on where a vector stands in a block, so that two equal candidates
# may differ in the last bits. A few more neighbours than asked for are scored again in float64; a row whose last one
# could still be tied with the k-th is searched again, wider.
SPARE = 4
ROUNDING = 2e-6  # of the product of the lengths: what a float32 inner product may be off by
QUERIES_AT_ONCE = 4096
FOUND_AT_ONCE = 2**20  # candidates of all queries that are looked at together, some 45 bytes each
NUMBERS_AT_ONCE = 2**17  # float64 numbers gathered for scoring at a time: a few MiB, which stay in the cache


def nearest_neighbours(queries: np.ndarray, candidates: np.ndarray, k: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The `k` candidates of largest inner product for each query (cosine, for vectors of length 1).

    FAISS searches (`IndexFlatIP`, exact); what it finds is scored again in float64 and rounded to float32. Results
    therefore depend neither on the other queries nor on the order of the candidates, and a tie, meaning equal float32
    similarities, goes to the lowest index.

    Args:
        queries: `(n, width)`.
        candidates: `(m, width)`.
        k: Neighbours for each query; cut to `m`.

    Returns:
        Similarities, float32, and candidate indices, int64, both `(n, min(k, m))`, best first.

    Raises:
        XlsrError: `k` is below 1, there are no candidates, or the two matrices do not fit together.

    Example:
        >>> similarities, indices = nearest_neighbours(np.eye(2), np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]), k=2)
        >>> indices.tolist()
        [[1, 2], [0, 1]]
    """
    queries, candidates = as_vectors(queries, "queries"), as_vectors(candidates, "candidates")
    if k < 1:
        raise XlsrError(f"k is {k}; ask for 1 neighbour or more.")
    if not len(candidates):
        raise XlsrError("candidates is empty; give at least one vector to search among.")
    if queries.shape[1] != candidates.shape[1]:
        raise XlsrError(
            f"queries are {queries.shape[1]} wide and candidates {candidates.shape[1]}; encode both with one model."
        )
    k = min(k, len(candidates))
    index = faiss.IndexFlatIP(candidates.shape[1])
    index.add(candidates)
    similarities = np.empty((len(queries), k), np.float32)
    indices = np.empty((len(queries), k), np.int64)
    longest = float(np.sqrt(np.einsum("nd,nd->n", candidates, candidates).max()))
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        pending = np.arange(start, min(start + QUERIES_AT_ONCE, len(queries)))
        width = min(k + SPARE, len(candidates))
        while pending.size:
            again = []
            # Where all candidates are alike, all of them are looked at, and not for all queries at a time.
            step = max(1, FOUND_AT_ONCE // width)
            for part in (pending[first : first + step] for first in range(0, pending.size, step)):
                rows = queries[part]
                found_similarities, found = index.search(rows, width)
                places = np.repeat(np.arange(len(rows)), width)
                exact = pair_products(rows, places, candidates, found.ravel()).reshape(found.shape)
                order = np.lexsort((found, -exact), axis=-1)[:, :k]
                similarities[part] = np.take_along_axis(exact, order, axis=1)
                indices[part] = np.take_along_axis(found, order, axis=1)
                # A candidate that was not found lies at or below the last one found, give or take the rounding.
                unsure = ROUNDING * longest * np.linalg.norm(rows, axis=1)
                again.append(part[similarities[part, -1] <= found_similarities[:, -1] + unsure])
            if width == len(candidates):
                break
            pending = np.concatenate(again)
            width = min(4 * width, len(candidates))
    return similarities, indices


class Rows(Protocol):
    """Vectors that can be had by their positions: a matrix, or `hf_xlsr.mining.search.vectors.Vectors`."""

    def __getitem__(self, positions: np.ndarray) -> np.ndarray: ...


def pair_products(queries: np.ndarray, rows: np.ndarray, candidates: Rows, columns: np.ndarray) -> np.ndarray:
    """Inner products of single pairs, summed in float64.

    Args:
        queries: `(n, width)`, float32.
        rows: Each pair's row of `queries`.
        candidates: `(m, width)`, float32.
        columns: Each pair's row of `candidates`.

    Returns:
        One float32 a pair, which depends on the two vectors alone.

    Example:
        >>> vectors = np.array([[1, 2], [3, 4]], np.float32)
        >>> pair_products(vectors, np.array([0, 1]), vectors, np.array([1, 1]))
        array([11., 25.], dtype=float32)
    """
    products = np.empty(len(rows), np.float32)
    # Candidates that lie near each other in a file are read together.
    order = np.argsort(columns, kind="stable")
    step = max(1, NUMBERS_AT_ONCE // max(1, queries.shape[1]))
    for start in range(0, len(rows), step):
        part = order[start : start + step]
        # Not a matrix product: the order of summation must be the same wherever a pair stands.
        products[part] = (queries[rows[part]].astype(np.float64) * candidates[columns[part]]).sum(axis=1)
    return products
