"""Matrices of sentence embeddings."""

from __future__ import annotations

import numpy as np

from hf_xlsr.utils.errors import XlsrError


def as_vectors(vectors: np.ndarray, name: str) -> np.ndarray:
    """The vectors as a C-contiguous float32 matrix; the input is never written to.

    Args:
        vectors: `(n, width)`, any real type.
        name: What the caller's argument is called, for the error sentence.

    Returns:
        `(n, width)`, float32; the input itself where it already is one.

    Raises:
        XlsrError: it is no matrix, or holds NaN or infinity.

    Example:
        >>> as_vectors([[1, 2]], "queries")
        array([[1., 2.]], dtype=float32)
    """
    matrix = np.ascontiguousarray(vectors, dtype=np.float32)
    if matrix.ndim != 2:
        raise XlsrError(f"{name} has shape {np.shape(vectors)}; give a matrix with one row a sentence.")
    bad = np.flatnonzero(~np.isfinite(matrix).all(axis=1))
    if bad.size:
        raise XlsrError(
            f"row {bad[0]} of {name} holds NaN or infinity ({bad.size} such rows); "
            "check the encoder, or encode in float32."
        )
    return matrix
