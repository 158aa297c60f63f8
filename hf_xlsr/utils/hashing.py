"""Hashes of files and texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_BLOCK = 1 << 20


def file_sha256(path: Path) -> str:
    """SHA-256 of what a file holds, in 64 hexadecimal digits.

    Example:
        >>> _ = Path("a.txt").write_bytes(b"a")
        >>> file_sha256(Path("a.txt"))[:8]
        'ca978112'
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def data_hash(texts: Iterable[str]) -> str:
    """SHA-256 of the texts in order, to tell whether two results are of the same data.

    Each text counts as its length in bytes (8 bytes, big-endian) and its UTF-8, so that no two lists read the same.

    Example:
        >>> data_hash(["a", "b"])[:12], data_hash(["ab"])[:12]
        ('3c9d591045bc', '9caccc24b5d7')
    """
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.hexdigest()
