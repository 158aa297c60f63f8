"""Indexes of FAISS for embeddings, of a kind that suits their number."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import require_package
from hf_xlsr.utils.files import atomic_write

if TYPE_CHECKING:
    import faiss

IndexKind = Literal["flat", "hnsw", "ivf"]
# Most vectors of an index: exact search is fast enough below, and a graph needs more memory than lists above.
FLAT = 10_000
HNSW = 1_000_000
NEIGHBOURS = 32  # of a vector in the graph
CANDIDATES = 128  # that a search of the graph keeps
ROWS_PER_LIST = 64  # that the lists are learned from
PROBED_SHARE = 16  # a search reads a list of this many
ROWS_AT_ONCE = 65_536


def index_kind(count: int) -> IndexKind:
    """The kind of index for a number of vectors.

    Examples:
        >>> index_kind(10_000), index_kind(10_001), index_kind(1_000_001)
        ('flat', 'hnsw', 'ivf')
    """
    if count <= FLAT:
        return "flat"
    return "hnsw" if count <= HNSW else "ivf"


def build_index(vectors: np.ndarray, kind: IndexKind | None = None, *, seed: int = 1) -> faiss.Index:
    """An index by inner product, which is the cosine for vectors of length 1.

    Args:
        vectors: `(count, width)`, also memory-mapped; row `i` has id `i`.
        kind: `flat` searches exactly, `hnsw` in a graph of neighbours, `ivf` in the lists of the nearest centroids; by
            default `index_kind`.
        seed: Draws the vectors that the lists of `ivf` are learned from.

    Raises:
        XlsrError: Without the package faiss, or without vectors.
    """
    require_package("faiss")
    import faiss

    count, width = vectors.shape
    if not count:
        raise XlsrError("An index needs at least one vector, got 0.")
    kind = kind or index_kind(count)
    index: Any  # each kind is a class of its own, some with attributes that faiss's stubs lack
    if kind == "flat":
        index = faiss.IndexFlatIP(width)
    elif kind == "hnsw":
        index = faiss.IndexHNSWFlat(width, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efSearch = CANDIDATES
    else:
        index = _trained_lists(vectors, seed)

    for start in range(0, count, ROWS_AT_ONCE):
        index.add(np.ascontiguousarray(vectors[start : start + ROWS_AT_ONCE], dtype=np.float32))
    filled: faiss.Index = index
    return filled


def _trained_lists(vectors: np.ndarray, seed: int) -> faiss.Index:
    """An empty index of lists, about 4 times the square root of the number of vectors."""
    import faiss

    count, width = vectors.shape
    lists = max(1, min(round(4 * count**0.5), count // ROWS_PER_LIST))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, faiss.METRIC_INNER_PRODUCT)
    index.nprobe = max(1, lists // PROBED_SHARE)
    size = min(count, lists * ROWS_PER_LIST)
    rows = np.random.default_rng(seed).choice(count, size, replace=False)
    index.train(np.ascontiguousarray(vectors[np.sort(rows)], dtype=np.float32))
    return index


def store_index(index: faiss.Index, path: str | Path) -> None:
    """Writes an index; `faiss.read_index(path)` reads it."""
    import faiss

    with atomic_write(path) as partial:
        faiss.write_index(index, str(partial))
