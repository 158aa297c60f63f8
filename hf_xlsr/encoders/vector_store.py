"""Embeddings on disk, which several commands and runs share."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_xlsr.utils.errors import error_line
from hf_xlsr.utils.files import atomic_write

logger = logging.getLogger(__name__)
DIGEST = 16  # bytes of a key on disk
VECTORS, KEYS = ".vectors.npy", ".keys.npy"


class VectorStore:
    """Vectors of one encoder by key, in a folder of their own inside `folder`; memory-mapped.

    Each `add` writes a pair of new files, the keys last: a reader finds a whole pair or none. So processes may read and
    write at once. Two that add the same key both write it, which takes disk and nothing else.

    Args:
        folder: Shared by all encoders.
        encoder: Everything that determines the vectors apart from the keys, such as the model's `content_hash`.

    Examples:
        >>> store = VectorStore("vectors", {"model": "a hash"})
        >>> store.add(["one", "two"], np.eye(2, dtype=np.float32))
        >>> VectorStore("vectors", {"model": "a hash"}).find(["two", "three"])
        [array([0., 1.], dtype=float32), None]
    """

    def __init__(self, folder: str | os.PathLike[str], encoder: Mapping[str, Any]) -> None:
        facts = json.dumps(encoder, sort_keys=True, ensure_ascii=False)
        self.folder = Path(folder) / hashlib.sha256(facts.encode()).hexdigest()[:32]
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "encoder.json").write_text(facts, "utf-8")
        self._files: dict[str, np.ndarray] = {}
        self._places: dict[bytes, tuple[str, int]] = {}

    def find(self, keys: Sequence[Hashable]) -> list[np.ndarray | None]:
        """The vector of each key, `(width,)`; None if it has none."""
        self._read_new_files()
        places = [self._places.get(_digest(key)) for key in keys]
        return [None if place is None else self._files[place[0]][place[1]] for place in places]

    def add(self, keys: Sequence[Hashable], vectors: np.ndarray) -> None:
        """Stores vectors, `(len(keys), width)`."""
        name = uuid.uuid4().hex
        np.save(self.folder / f"{name}{VECTORS}", vectors)
        digests = np.frombuffer(b"".join(map(_digest, keys)), np.uint8).reshape(-1, DIGEST)
        with atomic_write(self.folder / f"{name}{KEYS}") as partial, partial.open("wb") as stream:
            np.save(stream, digests)

    def _read_new_files(self) -> None:
        for file in sorted(self.folder.glob(f"*{KEYS}")):
            name = file.name.removesuffix(KEYS)
            if name in self._files:
                continue
            try:
                vectors, digests = np.load(self.folder / f"{name}{VECTORS}", mmap_mode="r"), np.load(file)
            except Exception as error:  # a damaged file raises errors of many types
                logger.warning("'%s' is damaged; its texts are encoded again: %s", file, error_line(error, 100))
                vectors, digests = np.empty((0, 0)), np.empty((0, DIGEST), np.uint8)
            self._files[name] = np.asarray(vectors)  # a plain view: rows of `memmap` are slow
            for row, digest in enumerate(digests[: len(vectors)]):
                self._places.setdefault(digest.tobytes(), (name, row))


def _digest(key: Hashable) -> bytes:
    return hashlib.blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=DIGEST).digest()
