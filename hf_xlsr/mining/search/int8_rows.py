"""Rows of length 1 in one byte a number, for half the disk of float16."""

from __future__ import annotations

import numpy as np
import torch

from hf_xlsr.utils.vectors import as_vectors

FIELD = "int8"
LARGEST = 127
VECTOR_BYTES = {"float32": 4, "float16": 2, FIELD: 1}
"""How vectors can be stored for search -> bytes of a number."""


def int8_rows(vectors: np.ndarray) -> np.ndarray:
    """The directions of vectors in one byte a number, for `neighbours_both_ways` and `mine_bitext`.

    Each row is divided by its largest number and rounded to steps of 1/127. The scale of a row is the one that gives it
    the length 1, so it is not stored. Search finds the nearest of the rounded rows: near ties of the given ones may
    change places.

    Args:
        vectors: `(rows, width)`, of any length; a row of zeros stays one.

    Returns:
        `(rows,)` of a type with one field, `int8`, `(rows, width)`, which tells them from a matrix of small integers.

    Examples:
        >>> rows = int8_rows(np.array([[3.0, 4.0], [0.0, -2.0]]))
        >>> rows["int8"].tolist()
        [[95, 127], [0, -127]]
        >>> as_float32(rows)[0]
        array([0.5989907, 0.800756 ], dtype=float32)
    """
    matrix = as_vectors(vectors, "vectors")
    largest = np.abs(matrix).max(axis=1, keepdims=True)
    steps = np.rint(matrix * (LARGEST / np.where(largest > 0, largest, 1)))
    rows: np.ndarray = np.empty(len(matrix), int8_type(matrix.shape[1]))
    rows[FIELD] = steps
    return rows


def stored_as(vectors: np.ndarray, dtype: str) -> np.ndarray:
    """Vectors of length 1, `(rows, width)`, in one of `VECTOR_BYTES`."""
    return int8_rows(vectors) if dtype == FIELD else vectors.astype(dtype)


def int8_type(width: int) -> np.dtype[np.void]:
    """The type of a row of that width."""
    return np.dtype([(FIELD, np.int8, (width,))])


def is_int8(matrix: np.ndarray) -> bool:
    """Whether an array holds `int8_rows`."""
    return matrix.dtype.names == (FIELD,)


def as_floats(rows: np.ndarray, kind: type) -> np.ndarray:
    """Vectors, or `int8_rows`, as numbers of a floating type, `(rows, width)`."""
    return as_float32(rows).astype(kind, copy=False) if is_int8(rows) else rows.astype(kind)


def as_float32(rows: np.ndarray) -> np.ndarray:
    """`int8_rows` as vectors of length 1, `(rows, width)`, float32."""
    vectors: np.ndarray = unit_rows(torch.from_numpy(np.array(rows[FIELD]))).numpy()
    return vectors


def unit_rows(numbers: torch.Tensor) -> torch.Tensor:
    """The numbers of `int8_rows`, `(rows, width)`, as vectors of length 1, float32."""
    rows = numbers.float()
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows.div_(lengths.clamp(min=1))  # a row of zeros has the length 0
