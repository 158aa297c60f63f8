"""The vectors of one side, read as float32 block by block, in memory or memory-mapped."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from hf_xlsr.utils.errors import XlsrError

NUMBERS_AT_ONCE = 2**18
ROWS_OF_MIDDLE = 512


class Vectors:
    """The selected rows of a matrix, in memory or memory-mapped, read as float32."""

    def __init__(self, matrix: np.ndarray, select: np.ndarray | None = None, labels: np.ndarray | None = None) -> None:
        self.matrix, self.select = matrix, select
        self._labels = select if labels is None else labels
        self.kind = np.float16 if matrix.dtype == np.float16 else np.float32
        self.step = max(1, NUMBERS_AT_ONCE // max(1, matrix.shape[1]))

    def __len__(self) -> int:
        return len(self.matrix) if self.select is None else len(self.select)

    @property
    def width(self) -> int:
        return self.matrix.shape[1]

    def labels(self, positions: np.ndarray) -> np.ndarray:
        """Numbers in results of the rows at some positions."""
        return positions if self._labels is None else self._labels[positions]

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """The vectors at some positions: `(len(positions), width)`, float32."""
        rows = positions if self.select is None else self.select[positions]
        return np.asarray(self.matrix[rows], np.float32)

    def block(self, start: int, stop: int, kind: type = np.float32) -> np.ndarray:
        """The vectors from `start` to `stop`, of a type; a view if the matrix is of that type."""
        stop = min(stop, len(self))
        if self.select is not None:
            return self[np.arange(start, stop)].astype(kind, copy=False)
        rows = np.asarray(self.matrix[start:stop])
        if rows.dtype == kind and rows.flags.c_contiguous:
            return rows
        vectors: np.ndarray = np.empty(rows.shape, kind)
        convert(rows, vectors)
        return vectors


def convert(vectors: np.ndarray, out: np.ndarray) -> None:
    if np.float16 not in (vectors.dtype, out.dtype) or not vectors.flags.c_contiguous:
        out[:] = vectors
        return
    # Several times as fast as NumPy.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the array is not writable
        torch.from_numpy(out).copy_(torch.from_numpy(vectors))


class VectorStats(NamedTuple):
    """Statistics of a side, by one pass over its vectors."""

    longest: float
    spread: float
    residual: float
    shift: float
    surplus: np.ndarray
    originals: np.ndarray


def middle(matrix: np.ndarray) -> np.ndarray:
    """Mean of a sample of a side's vectors, `(width,)`."""
    rows = np.linspace(0, len(matrix) - 1, min(len(matrix), ROWS_OF_MIDDLE)).astype(np.int64)
    return Vectors(matrix)[rows].mean(axis=0)


def scan(
    matrix: np.ndarray,
    name: str,
    copies: int,
    middles: tuple[np.ndarray, np.ndarray],
    rounded: Callable[[np.ndarray], np.ndarray],
) -> VectorStats:
    """Checks and measures a side's vectors; `middles` are its own and that of the other side.

    Of equal similarities the lowest row wins, so a row with `copies` (`k`) copies above it is never a neighbour.
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
        with np.errstate(invalid="ignore", over="ignore"):  # a middle may hold NaN of a later row
            spread = max(spread, _squares(block - middles[0]).max())
            shifts = difference @ middles[1]
        residual = max(residual, _squares(difference).max())
        low, high = min(low, shifts.min()), max(high, shifts.max())
        fingerprints[start : start + len(block)] = block.view(np.uint32).astype(np.uint64) @ factors
    for rows, fault in ((np.concatenate(bad), "NaN or infinity"), (np.concatenate(zero), "only zeros")):
        if rows.size:
            raise XlsrError(f"Row {rows[0]} of `{name}` holds {fault} ({rows.size} such rows).")
    longest, spread, residual = (float(square) ** 0.5 for square in (longest, spread, residual))
    return VectorStats(longest, spread, residual, float(high - low), *_surplus(vectors, fingerprints, copies))


def _squares(vectors: np.ndarray) -> np.ndarray:
    return np.einsum("nd,nd->n", vectors, vectors, dtype=np.float32)


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
    # Different vectors may share a fingerprint; a run with one that is not a copy is left alone.
    true = np.ones(len(first), bool)
    for start in range(0, len(members), vectors.step):
        part = slice(start, start + vectors.step)
        equal = (vectors[members[part]] == vectors[first[run[part]]]).all(axis=1)
        true[run[part][~equal]] = False
    surplus = (place >= copies) & true[run]
    rows, originals = members[surplus], first[run[surplus]]
    ascending = np.argsort(rows)
    return rows[ascending], originals[ascending]
