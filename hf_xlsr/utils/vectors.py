"""Matrices of sentence embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hf_xlsr.utils.errors import XlsrError


def as_array(vectors: Any) -> np.ndarray:
    """What an encoder returns as float32: an array, a tensor of any precision, with a gradient or not, or a list.

    Examples:
        >>> import torch
        >>> as_array([torch.ones(2, dtype=torch.bfloat16, requires_grad=True)])
        array([[1., 1.]], dtype=float32)
    """
    # Without an import of torch, which takes seconds.
    if isinstance(vectors, (list, tuple)) and vectors and hasattr(vectors[0], "detach"):
        vectors = [as_array(vector) for vector in vectors]
    if hasattr(vectors, "detach"):
        vectors = vectors.detach().float().cpu().numpy()
    return np.asarray(vectors, dtype=np.float32)


def as_vectors(vectors: Any, name: str, texts: Sequence[str] = ()) -> np.ndarray:
    """Vectors as a finite C-contiguous float32 matrix, `(n, width)`; the input itself if it is one.

    Errors name the text of a row, if there are `texts`.
    """
    matrix = np.ascontiguousarray(as_array(vectors))
    if matrix.ndim != 2:
        raise XlsrError(f"`{name}` must be a matrix with one row per sentence, got shape {np.shape(vectors)}.")
    check_finite(matrix, name, texts=texts)
    return matrix


def check_finite(
    vectors: np.ndarray,
    name: str,
    first_row: int = 0,
    texts: Sequence[str] = (),
) -> None:
    """Raises if a row of `(..., width)` holds NaN or infinity; rows are counted from `first_row`."""
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=-1))
    if bad.size:
        of_text = f", for the text {texts[bad[0]][:60]!r}" if texts else ""
        raise XlsrError(f"row {first_row + bad[0]} of {name} holds NaN or infinity{of_text}.")
