"""The hash of a file's content, read in blocks."""

from __future__ import annotations

import hashlib
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
