"""Matrices of sentence embeddings."""

from __future__ import annotations

import numpy as np

from hf_xlsr.utils.errors import XlsrError


def as_vectors(vectors: np.ndarray, name: str) -> np.ndarray:
    """Vectors as a C-contiguous float32 matrix.

    Args:
        vectors: `(n, width)`, any real type; unchanged.
        name: Name of the argument, for errors.

    Returns:
        `(n, width)`, float32; the input itself if it already is such a matrix.

    Raises:
        XlsrError: it is not a matrix, or holds NaN or infinity.

    Examples:
        >>> as_vectors([[1, 2]], "queries")
        array([[1., 2.]], dtype=float32)
    """
    matrix = np.ascontiguousarray(vectors, dtype=np.float32)
    if matrix.ndim != 2:
        raise XlsrError(f"`{name}` must be a matrix with one row per sentence, got shape {np.shape(vectors)}.")
    bad = np.flatnonzero(~np.isfinite(matrix).all(axis=1))
    if bad.size:
        raise XlsrError(
            f"row {bad[0]} of {name} holds NaN or infinity ({bad.size} such rows). "
            "Check the encoder, or encode in float32."
        )
    return matrix
