"""Embeddings that are computed once: in memory for one command, or on disk for several commands and runs."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from hf_xlsr.encoders.arguments import WrappedEncoder
from hf_xlsr.encoders.encoding import routes_of
from hf_xlsr.utils.errors import error_line
from hf_xlsr.utils.files import atomic_write, private_folder, write_text

logger = logging.getLogger(__name__)
DIGEST = 16  # bytes of a key on disk
VECTORS = ".vectors.npy"
KEYS = ".keys.npy"


class CachedEncoder(WrappedEncoder):
    """Wraps an encoder and keeps the embedding of each text, by text, route and prompt, in memory or in a store on disk.

    What is kept is neither truncated, normalised nor quantised by arguments of `encode`, so calls may differ in these.
    In memory it is one float32 vector per distinct text. `encoded` and `seconds` tell how many texts the encoder has
    encoded, and how long it took.

    Examples:
        >>> class Lengths:
        ...     def encode(self, texts, **kwargs):
        ...         print("encoding", texts)
        ...         return np.array([[len(text), 1.0] for text in texts])
        >>> encoder = CachedEncoder(Lengths())
        >>> encoder.encode(["a", "bc"]).shape, encoder.encode(["bc", "def"]).shape
        encoding ['a', 'bc']
        encoding ['def']
        ((2, 2), (2, 2))
    """

    def __init__(self, encoder: Any, store: VectorStore | None = None) -> None:
        super().__init__(encoder)
        self.encoded = 0
        self.seconds = 0.0
        self.routes = routes_of(encoder)
        self._store: VectorStore | _InMemory = store or _InMemory()

    def vectors_of(
        self,
        texts: list[str],
        *,
        prompt: str,
        task: str | None,
        **options: Any,
    ) -> np.ndarray:
        """Embeddings of the texts, of which only those that are not kept yet are encoded."""
        keys = [(task, prompt, text) for text in texts]
        stored = dict(zip(keys, self._store.find(keys), strict=True))
        missing = [key for key, vector in stored.items() if vector is None]
        if missing:
            start = perf_counter()
            new_texts = [text for _, _, text in missing]
            self._store.add(missing, self.inner_vectors(new_texts, prompt, task, **options))
            self.encoded += len(missing)
            self.seconds += perf_counter() - start

        vectors: list[Any] = self._store.find(keys)  # none is missing
        return np.stack(vectors)


class _InMemory:
    """A `VectorStore` without a disk."""

    def __init__(self) -> None:
        self._vectors: dict[Hashable, np.ndarray] = {}

    def find(self, keys: Sequence[Hashable]) -> list[np.ndarray | None]:
        return [self._vectors.get(key) for key in keys]

    def add(self, keys: Sequence[Hashable], vectors: np.ndarray) -> None:
        self._vectors.update(zip(keys, vectors, strict=True))


class VectorStore:
    """Vectors of one encoder by key, memory-mapped, in a folder of their own inside `folder`, which encoders share.

    They are believed, so that both folders must be this user's alone (`private_folder`).

    `encoder` is everything that determines the vectors apart from the keys, such as the model's `content_hash`. Each
    `add` writes a pair of new files, the keys last, so processes may read and write at once.

    Examples:
        >>> store = VectorStore("vectors", {"model": "a hash"})
        >>> store.add(["one", "two"], np.eye(2, dtype=np.float32))
        >>> VectorStore("vectors", {"model": "a hash"}).find(["two", "three"])
        [array([0., 1.], dtype=float32), None]
    """

    def __init__(self, folder: str | os.PathLike[str], encoder: Mapping[str, Any]) -> None:
        facts = json.dumps(encoder, sort_keys=True, ensure_ascii=False)
        self.folder = private_folder(folder) / hashlib.sha256(facts.encode()).hexdigest()[:32]
        private_folder(self.folder)
        write_text(self.folder / "encoder.json", facts)
        self._read_files: set[Path] = set()
        self._rows: dict[bytes, np.ndarray] = {}  # the vector of each key, a view of a file

    def find(self, keys: Sequence[Hashable]) -> list[np.ndarray | None]:
        """The vector of each key, `(width,)`; None if it has none."""
        self._read_new_files()
        return [self._rows.get(_digest(key)) for key in keys]

    def add(self, keys: Sequence[Hashable], vectors: np.ndarray) -> None:
        """Stores vectors, `(len(keys), width)`."""
        name = uuid.uuid4().hex
        digests = np.frombuffer(b"".join(map(_digest, keys)), np.uint8).reshape(-1, DIGEST)
        for ending, array in ((VECTORS, vectors), (KEYS, digests)):
            with atomic_write(self.folder / f"{name}{ending}") as partial, partial.open("wb") as stream:
                np.save(stream, array)

    def _read_new_files(self) -> None:
        new_files = set(self.folder.glob(f"*{KEYS}")) - self._read_files
        self._read_files |= new_files
        for file in sorted(new_files):
            try:
                digests = np.load(file)
                vectors = np.asarray(np.load(str(file).removesuffix(KEYS) + VECTORS, mmap_mode="r"))
            except Exception as error:  # a damaged file raises errors of many types
                logger.warning("'%s' is damaged; its texts are encoded again: %s", file, error_line(error, 100))
                continue
            for digest, vector in zip(digests, vectors, strict=False):
                self._rows.setdefault(digest.tobytes(), vector)


def _digest(key: Hashable) -> bytes:
    """The name of a key on disk."""
    return hashlib.blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=DIGEST).digest()
