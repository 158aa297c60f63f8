"""SHA-256 of files, texts and arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

_BLOCK = 1 << 20


def update_from_file(digest: Any, path: Path) -> None:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)


def file_sha256(path: Path) -> str:
    """SHA-256 of the content of a file, in 64 hexadecimal digits."""
    digest = hashlib.sha256()
    update_from_file(digest, path)
    return digest.hexdigest()


def data_hash(texts: Iterable[str]) -> str:
    """SHA-256 of texts in order.

    Each text is hashed as its length in bytes (8 bytes, big-endian) followed by its UTF-8, so no two lists of texts
    collide by concatenation.

    Examples:
        >>> data_hash(["a", "b"])[:12], data_hash(["ab"])[:12]
        ('3c9d591045bc', '9caccc24b5d7')
    """
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.hexdigest()


def array_hash(array: np.ndarray) -> str:
    """SHA-256 of the type, shape and values of an array; a memory-mapped one is read in blocks."""
    digest = hashlib.sha256(f"{array.dtype} {array.shape}".encode())
    rows = max(1, _BLOCK * len(array) // max(1, array.nbytes))
    for start in range(0, len(array), rows):
        digest.update(np.ascontiguousarray(array[start : start + rows]).tobytes())
    return digest.hexdigest()
