"""The vectors of one side, read as float32 block by block, in memory or memory-mapped, and their exact products."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import DTypeLike

from hf_xlsr.mining.search.int8_rows import FIELD, as_float32, is_int8
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import atomic_write
from hf_xlsr.utils.vectors import check_finite

NUMBERS_AT_ONCE = 2**18
PRODUCTS_AT_ONCE = 2**17  # float64 numbers gathered for scoring at a time: a few MiB, which stay in the cache
ROWS_OF_MIDDLE = 512
ROWS_OF_CLASS = 1 << 23  # rows whose equality is judged at a time, about


def check_widths(source: np.ndarray, target: np.ndarray) -> None:
    """Raises if two matrices have vectors of different widths."""
    widths = [Vectors(matrix).width for matrix in (source, target)]
    if widths[0] != widths[1]:
        raise XlsrError(f"Vectors must be equally wide, got {widths[0]} and {widths[1]}: use one encoder.")


def as_tensor(block: np.ndarray, device: str = "cpu") -> torch.Tensor:
    """A block as a tensor on a device, of `int8_rows` their numbers.

    On the CPU it shares the block's memory, and must not be written.
    """
    if is_int8(block):
        block = block[FIELD]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the array is not writable
        return torch.from_numpy(block).to(device)


def sample_rows(rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    """At most `size` different rows of `count`, ascending."""
    return np.sort(rng.choice(count, min(size, count), replace=False))


class MatrixFile(NamedTuple):
    """Where a memory-mapped matrix is, so that other processes open it instead of getting its numbers."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    order: str

    @classmethod
    def of(cls, matrix: np.ndarray) -> MatrixFile | None:
        """The file of a matrix; None for one in memory, or for a part of a file."""
        if not isinstance(matrix, np.memmap) or not isinstance(matrix.base, mmap):
            return None
        order = "C" if matrix.flags.c_contiguous else "F"
        return cls(str(matrix.filename), matrix.dtype, matrix.shape, matrix.offset, order)

    def open(self) -> np.ndarray:
        """The matrix, memory-mapped."""
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape, self.order)  # type: ignore[call-overload, no-any-return]


def portable(array: np.ndarray) -> MatrixFile | np.ndarray:
    """What another process gets of an array: its file if it has one."""
    return MatrixFile.of(array) or array


def opened_array(array: MatrixFile | np.ndarray) -> np.ndarray:
    """The array that `portable` stands for."""
    return array.open() if isinstance(array, MatrixFile) else array


def in_file(matrix: np.ndarray, path: Path) -> np.ndarray:
    """The matrix, memory-mapped: itself if it is, else from a file that is written now."""
    if MatrixFile.of(matrix) is None:
        if not path.exists():
            with atomic_write(path) as partial, partial.open("wb") as file:
                np.save(file, matrix)
        matrix = np.load(path, mmap_mode="r")
    return matrix


class Vectors:
    """The selected rows of a matrix, in memory or memory-mapped, read as float32.

    A vector is addressed by its position among the selected rows. Its label, the number that results show, is its row
    in the matrix unless `labels` are passed. `kind` is the type that copies of the rows are stored in, without loss but
    for float64.
    """

    def __init__(
        self,
        matrix: np.ndarray,
        select: np.ndarray | None = None,
        labels: np.ndarray | None = None,
    ) -> None:
        self.matrix = matrix
        self.select = select
        self._labels = select if labels is None else labels
        self.kind: np.dtype[Any] = np.dtype(np.float32)
        if matrix.dtype == np.float16 or is_int8(matrix):
            self.kind = matrix.dtype
        self.step = max(1, NUMBERS_AT_ONCE // self.width)  # rows read at a time

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = [None if array is None else portable(array) for array in (self.matrix, self.select, self._labels)]
        return _open_vectors, tuple(arrays)

    def __len__(self) -> int:
        return len(self.matrix if self.select is None else self.select)

    @property
    def width(self) -> int:
        numbers = self.matrix.dtype[FIELD] if is_int8(self.matrix) else self.matrix
        return int(numbers.shape[-1])

    @property
    def itemsize(self) -> int:
        """Bytes of a number of stored copies."""
        return self.kind.itemsize // self.width if is_int8(self.matrix) else self.kind.itemsize

    def shape(self, rows: int) -> tuple[int, ...]:
        """The shape of an array of type `kind` for that many rows."""
        return (rows, *self.matrix.shape[1:])

    def labels(self, positions: np.ndarray) -> np.ndarray:
        """Numbers in results of the rows at some positions."""
        if self._labels is None:
            return positions
        return np.take(self._labels, positions)

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """The vectors at some positions: `(len(positions), width)`, float32."""
        rows = self.rows(positions)
        return as_float32(rows) if is_int8(rows) else np.asarray(rows, np.float32)

    def rows(self, positions: np.ndarray | slice) -> np.ndarray:
        """The rows at some positions, as the matrix holds them."""
        return np.asarray(self.matrix[positions if self.select is None else self.select[positions]])

    def block(self, start: int, stop: int, kind: DTypeLike = np.float32) -> np.ndarray:
        """The vectors from `start` to `stop`, in float32 or `kind`; a view if the matrix is of that type."""
        rows = self.rows(slice(start, min(stop, len(self))))
        if rows.dtype == kind and rows.flags.c_contiguous:
            return rows
        if is_int8(rows):
            return as_float32(rows)
        vectors: np.ndarray = np.empty(rows.shape, kind)
        convert(rows, vectors)
        return vectors


def _open_vectors(
    matrix: MatrixFile | np.ndarray,
    select: MatrixFile | np.ndarray | None,
    labels: MatrixFile | np.ndarray | None,
) -> Vectors:
    opened_select = None if select is None else opened_array(select)
    opened_labels = None if labels is None else opened_array(labels)
    return Vectors(opened_array(matrix), opened_select, opened_labels)


def convert(vectors: np.ndarray, out: np.ndarray) -> None:
    """Copies vectors into an array of another type."""
    if np.float16 in (vectors.dtype, out.dtype) and vectors.flags.c_contiguous:
        torch.from_numpy(out).copy_(as_tensor(vectors))  # several times as fast as NumPy
    else:
        out[:] = vectors


def pair_products(
    queries: np.ndarray | Vectors,
    rows: np.ndarray,
    candidates: np.ndarray | Vectors,
    columns: np.ndarray,
) -> np.ndarray:
    """Inner products of pairs, summed in float64: each float32 depends only on its two vectors.

    Pair `i` is the query `rows[i]` and the candidate `columns[i]`.
    """
    query_side = queries if isinstance(queries, Vectors) else Vectors(queries)
    side = candidates if isinstance(candidates, Vectors) else Vectors(candidates)
    products = np.empty(len(rows), np.float32)
    order = np.argsort(columns, kind="stable")  # candidates that are near each other in a file are read together
    step = max(1, PRODUCTS_AT_ONCE // side.width)
    for start in range(0, len(rows), step):
        pairs = order[start : start + step]
        query_vectors = query_side[rows[pairs]].astype(np.float64)
        # Not a matrix product: the order of summation must not depend on the other pairs.
        products[pairs] = (query_vectors * side[columns[pairs]]).sum(axis=1)
    return products


class VectorStats(NamedTuple):
    """Statistics of a side, by one pass over its vectors.

    The residual of a vector is what rounding takes from it, and the middle of a side a vector near all of its own.

    Attributes:
        longest: Length of the longest vector.
        spread: Largest distance of a vector from the middle.
        residual: Length of the longest residual.
        shift: Range of the products of the residuals with the other side's middle.
        surplus: Rows that are never a neighbour, because enough equal rows stand above them.
        originals: The first copy of each surplus row.
    """

    longest: float
    spread: float
    residual: float
    shift: float
    surplus: np.ndarray
    originals: np.ndarray


def middle(matrix: np.ndarray) -> np.ndarray:
    """Mean of a sample of a side's vectors, `(width,)`."""
    count = min(len(matrix), ROWS_OF_MIDDLE)
    rows = np.linspace(0, len(matrix) - 1, count).astype(np.int64)
    mean: np.ndarray = Vectors(matrix)[rows].mean(axis=0)
    return mean


def scan(
    matrix: np.ndarray,
    name: str,
    copies: int,
    own_middle: np.ndarray,
    other_middle: np.ndarray,
    rounded: Callable[[np.ndarray], np.ndarray],
) -> VectorStats:
    """Checks and measures a side's vectors.

    Of equal similarities the lowest row wins, so a row with `copies` (`k`) copies above it is never a neighbour.
    """
    vectors = Vectors(matrix)
    lengths = []
    distances = []
    residual_lengths = []
    shifts = []
    fingerprints = np.empty(len(vectors), np.uint64)
    factors = np.random.default_rng(0).integers(1, 2**63, vectors.width, np.uint64)

    for start in range(0, len(vectors), vectors.step):
        block = vectors.block(start, start + vectors.step)
        check_finite(block, f"`{name}`", start)
        residuals = block - rounded(block)
        residual_lengths.append(_greatest_length(residuals))
        with np.errstate(invalid="ignore", over="ignore"):  # a middle may hold NaN of a later row
            lengths.append(_greatest_length(block))
            distances.append(_greatest_length(block - own_middle))
            shifts_of_block = residuals @ other_middle
        shifts += [shifts_of_block.min(), shifts_of_block.max()]
        bits = block.view(np.uint32).astype(np.uint64)
        fingerprints[start : start + len(block)] = bits @ factors

    longest = max(lengths)
    if not np.isfinite(longest):
        raise XlsrError(f"`{name}` has vectors whose squared length float32 cannot hold: normalise them.")
    shift = float(max(shifts) - min(shifts))
    surplus, originals = _surplus(vectors, fingerprints, copies)
    return VectorStats(longest, max(distances), max(residual_lengths), shift, surplus, originals)


def _greatest_length(vectors: np.ndarray) -> float:
    squares = np.einsum("nd,nd->n", vectors, vectors, dtype=np.float32)
    return math.sqrt(squares.max())


def _surplus(vectors: Vectors, fingerprints: np.ndarray, copies: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows with at least `copies` equal rows above them, and the first copy of each."""
    surplus = [np.empty(0, np.int64)]
    originals = [np.empty(0, np.int64)]
    classes = -(-len(fingerprints) // ROWS_OF_CLASS)
    for residue in range(classes):
        members = _members(fingerprints, classes, residue)
        class_surplus, class_originals = _surplus_of(vectors, members, fingerprints[members], copies)
        surplus.append(class_surplus)
        originals.append(class_originals)
    return np.concatenate(surplus), np.concatenate(originals)


def _members(fingerprints: np.ndarray, classes: int, residue: int) -> np.ndarray:
    """The rows of a class of fingerprints: rows of different classes differ."""
    members = []
    for start in range(0, len(fingerprints), ROWS_OF_CLASS):
        block = fingerprints[start : start + ROWS_OF_CLASS]
        members.append(start + np.flatnonzero(block % np.uint64(classes) == residue))
    return np.concatenate(members)


def _surplus_of(
    vectors: Vectors,
    members: np.ndarray,
    fingerprints: np.ndarray,
    copies: int,
) -> tuple[np.ndarray, np.ndarray]:
    """`_surplus` among some rows, which ascend."""
    ascending = np.sort(fingerprints)
    if not (ascending[copies:] == ascending[:-copies]).any():
        return np.empty(0, np.int64), np.empty(0, np.int64)

    # Equal rows become neighbours in `order`, from the lowest to the highest.
    order = members[np.argsort(fingerprints, kind="stable")]
    same_fingerprint = 1 + np.flatnonzero(ascending[1:] == ascending[:-1])
    first_copy = np.arange(len(order))
    for start in range(0, len(same_fingerprint), vectors.step):
        repeated = same_fingerprint[start : start + vectors.step]
        rows = vectors[order[repeated]]
        rows_before = vectors[order[repeated - 1]]
        is_equal = (rows == rows_before).all(axis=1)  # different vectors may share a fingerprint
        first_copy[repeated[is_equal]] = 0
    np.maximum.accumulate(first_copy, out=first_copy)

    surplus = np.flatnonzero(np.arange(len(order)) - first_copy >= copies)
    return order[surplus], order[first_copy[surplus]]
