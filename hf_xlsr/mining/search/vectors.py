"""The vectors of one side, read as float32 block by block, wherever they lie."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from hf_xlsr.mining.search.storage import drop_pages, is_mapped, scattered
from hf_xlsr.utils.errors import XlsrError

NUMBERS_AT_ONCE = 2**18
ROWS_OF_MIDDLE = 512


class Vectors:
    """Some rows of a matrix, read as float32.

    Args:
        matrix: `(rows, width)`, of any real type, in memory or memory-mapped.
        select: Which of its rows, ascending; all when None.
        labels: What the rows are called outside; where they stand in the matrix when None.

    Attributes:
        kind: The type that copies of them have: float16 or float32.
        in_file: Whether the matrix is memory-mapped.
        step: Rows that make a MiB: a good number to convert at a time.
    """

    def __init__(self, matrix: np.ndarray, select: np.ndarray | None = None, labels: np.ndarray | None = None) -> None:
        self.matrix, self.select = matrix, select
        self._labels = select if labels is None else labels
        self.kind = np.float16 if matrix.dtype == np.float16 else np.float32
        self.in_file = is_mapped(matrix)
        self.step = max(1, NUMBERS_AT_ONCE // max(1, matrix.shape[1]))

    def __len__(self) -> int:
        return len(self.matrix) if self.select is None else len(self.select)

    @property
    def width(self) -> int:
        """Numbers a vector."""
        return self.matrix.shape[1]

    def labels(self, positions: np.ndarray) -> np.ndarray:
        """What the rows at some positions are called outside."""
        return positions if self._labels is None else self._labels[positions]

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """The vectors at some positions: `(len(positions), width)`, float32."""
        rows = positions if self.select is None else self.select[positions]
        return np.asarray(scattered(self.matrix, rows), np.float32)

    def block(self, start: int, stop: int, kind: type = np.float32) -> np.ndarray:
        """The vectors from `start` up to `stop`, of a type; a view where they already are that, in memory."""
        stop = min(stop, len(self))
        if self.select is not None:
            return self[np.arange(start, stop)].astype(kind, copy=False)
        if not self.in_file and self.matrix.dtype == kind and self.matrix.flags.c_contiguous:
            return np.asarray(self.matrix[start:stop])
        vectors: np.ndarray = np.empty((max(0, stop - start), self.width), kind)
        for first in range(start, stop, self.step):
            last = min(first + self.step, stop)
            convert(self.matrix[first:last], vectors[first - start : last - start])
            drop_pages(self.matrix)
        return vectors


def convert(vectors: np.ndarray, out: np.ndarray) -> None:
    """Copies vectors into an array of another type."""
    if np.float16 not in (vectors.dtype, out.dtype) or not vectors.flags.c_contiguous:
        out[:] = vectors
        return
    # Several times as fast as NumPy.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the array is not writable
        torch.from_numpy(out).copy_(torch.from_numpy(vectors))


class Survey(NamedTuple):
    """What one pass over a side shows.

    Attributes:
        longest: Length of its longest vector.
        spread: The longest distance of a vector from the side's middle.
        residual: Length of the longest difference between a vector and what rounding makes of it.
        shift: The range of those differences' inner products with the other side's middle.
        surplus: Rows that have as many copies of themselves above them as were asked for; ascending.
        originals: The first copy of each of those.
    """

    longest: float
    spread: float
    residual: float
    shift: float
    surplus: np.ndarray
    originals: np.ndarray


def middle(matrix: np.ndarray) -> np.ndarray:
    """The mean of some of a side's vectors, `(width,)`."""
    rows = np.linspace(0, len(matrix) - 1, min(len(matrix), ROWS_OF_MIDDLE)).astype(np.int64)
    return Vectors(matrix)[rows].mean(axis=0)


def survey(
    matrix: np.ndarray,
    name: str,
    copies: int,
    middles: tuple[np.ndarray, np.ndarray],
    rounded: Callable[[np.ndarray], np.ndarray],
) -> Survey:
    """Checks a side's vectors, measures them, and finds the rows that are nobody's neighbours.

    Of equal similarities the lowest row counts, so that a row with `k` copies above it is among no row's `k` nearest.

    Args:
        matrix: `(rows, width)`.
        name: What the caller's argument is called, for the error sentence.
        copies: How many copies of a vector count: `k`.
        middles: Of this side and of the other, `(width,)`.
        rounded: What multiplication makes of vectors.

    Raises:
        XlsrError: a row holds NaN, infinity or nothing but zeros.
    """
    vectors = Vectors(matrix)
    bad, zero = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    longest = spread = residual = 0.0
    low, high = np.inf, -np.inf
    fingerprints = np.empty(len(vectors), np.uint64)
    factors = np.random.default_rng(0).integers(1, 2**63, vectors.width, np.uint64)
    for start in range(0, len(vectors), vectors.step):
        block = vectors.block(start, start + vectors.step)
        squares = _squares(block)
        longest = max(longest, squares.max())
        if not (squares.min() > 0 and squares.max() < np.inf):
            bad.append(start + np.flatnonzero(~np.isfinite(block).all(axis=1)))
            zero.append(start + np.flatnonzero(~block.any(axis=1)))
            continue
        difference = block - rounded(block)
        with np.errstate(invalid="ignore", over="ignore"):  # a middle is none where vectors are bad further down
            spread = max(spread, _squares(block - middles[0]).max())
            shifts = difference @ middles[1]
        residual = max(residual, _squares(difference).max())
        low, high = min(low, shifts.min()), max(high, shifts.max())
        fingerprints[start : start + len(block)] = block.view(np.uint32).astype(np.uint64) @ factors
    _refuse(np.concatenate(bad), name, "holds NaN or infinity", "check the encoder, or encode in float32")
    _refuse(np.concatenate(zero), name, "is all zeros and has no direction", "leave that sentence out")
    longest, spread, residual = (float(square) ** 0.5 for square in (longest, spread, residual))
    return Survey(longest, spread, residual, float(high - low), *_surplus(vectors, fingerprints, copies))


def _squares(vectors: np.ndarray) -> np.ndarray:
    """Squared lengths."""
    return np.einsum("nd,nd->n", vectors, vectors, dtype=np.float32)


def _refuse(rows: np.ndarray, name: str, fault: str, mend: str) -> None:
    if rows.size:
        raise XlsrError(f"row {rows[0]} of {name} {fault} ({rows.size} such rows); {mend}.")


def _surplus(vectors: Vectors, fingerprints: np.ndarray, copies: int) -> tuple[np.ndarray, np.ndarray]:
    none = np.empty(0, np.int64)
    ascending = np.sort(fingerprints)
    if not (ascending[copies:] == ascending[:-copies]).any():
        return none, none
    order = np.argsort(fingerprints, kind="stable")
    ascending = fingerprints[order]
    starts = np.flatnonzero(np.r_[True, ascending[1:] != ascending[:-1]])
    lengths = np.diff(np.r_[starts, len(order)])
    long = lengths > copies
    run = np.repeat(np.arange(long.sum()), lengths[long])
    first = order[starts[long]]
    place = np.arange(len(run)) - np.repeat(np.cumsum(lengths[long]) - lengths[long], lengths[long])
    members = order[np.repeat(starts[long], lengths[long]) + place]
    # A fingerprint may deceive; a run of which one is no copy is left as it is.
    true = np.ones(len(first), bool)
    for start in range(0, len(members), vectors.step):
        part = slice(start, start + vectors.step)
        equal = (vectors[members[part]] == vectors[first[run[part]]]).all(axis=1)
        true[run[part][~equal]] = False
    surplus = (place >= copies) & true[run]
    rows, originals = members[surplus], first[run[surplus]]
    ascending = np.argsort(rows)
    return rows[ascending], originals[ascending]


def identity(matrix: np.ndarray) -> str:
    """A hash by which the same vectors are known again: of their file's name, size and time, or of their bytes."""
    digest = hashlib.blake2b(f"{matrix.shape} {matrix.dtype.str}".encode(), digest_size=16)
    filename = getattr(matrix, "filename", None)
    if filename is not None:
        file = Path(filename).resolve()
        digest.update(f" {file} {file.stat().st_size} {file.stat().st_mtime_ns}".encode())
        parts = [matrix[:1], matrix[-1:]]  # not the same part of that file, unless they agree
    else:
        step = Vectors(matrix).step
        parts = [matrix[start : start + step] for start in range(0, len(matrix), step)]
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()
