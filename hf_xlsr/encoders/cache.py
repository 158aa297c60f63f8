"""Embeddings that are computed once: in memory for one command, or on disk for several commands and runs."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np

from hf_xlsr.encoders.arguments import WrappedEncoder
from hf_xlsr.encoders.encoding import routes_of
from hf_xlsr.utils.errors import error_line
from hf_xlsr.utils.files import atomic_write, private_folder, write_text
from hf_xlsr.utils.hash_index import HashIndex

logger = logging.getLogger(__name__)
DIGEST = 16  # bytes of a key on disk
VECTORS = ".vectors.npy"
KEYS = ".keys.npy"
FILES_OPEN = 1024  # pairs of files that stay mapped; a system allows a process some 65,000 maps
ROW_BITS = np.uint64(32)  # of a place: the number of a file, then a row in it


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
            new_vectors = self.inner_vectors(new_texts, prompt, task, **options)
            self._store.add(missing, new_vectors)
            stored.update(zip(missing, new_vectors, strict=True))
            self.encoded += len(missing)
            self.seconds += perf_counter() - start

        vectors: list[Any] = [stored[key] for key in keys]  # none is missing
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
    `add` writes a pair of new files, the keys last, so processes may read and write at once. A reader keeps 16 bytes in
    memory for each key: half of its digest, and its place. A vector is found only if the whole digest in the file is the
    key's.

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
        self._read_names: set[str] = set()
        self._names: list[str] = []  # of the pairs of files that are not damaged, by number
        self._index = HashIndex()
        self._open = lru_cache(FILES_OPEN)(self._load)

    def find(self, keys: Sequence[Hashable]) -> list[np.ndarray | None]:
        """The vector of each key, `(width,)`; None if it has none."""
        self._read_new_files()
        digests = _digests(keys)
        places, is_known = self._index.find(_heads(digests))
        files = places >> ROW_BITS
        rows = places & ~(~np.uint64(0) << ROW_BITS)

        vectors: list[np.ndarray | None] = [None] * len(keys)
        for file in np.unique(files[is_known]):
            positions = np.flatnonzero(is_known & (files == file))
            file_digests, file_vectors = self._open(self._names[file])
            is_same = (file_digests[rows[positions]] == digests[positions]).all(axis=1)
            for position in positions[is_same]:
                vectors[position] = file_vectors[rows[position]]
        return vectors

    def add(self, keys: Sequence[Hashable], vectors: np.ndarray) -> None:
        """Stores vectors, `(len(keys), width)`."""
        name = uuid.uuid4().hex
        for ending, array in ((VECTORS, vectors), (KEYS, _digests(keys))):
            with atomic_write(self.folder / f"{name}{ending}") as partial, partial.open("wb") as stream:
                np.save(stream, array)

    def _read_new_files(self) -> None:
        names = {file.name.removesuffix(KEYS) for file in self.folder.glob(f"*{KEYS}")}
        for name in sorted(names - self._read_names):
            self._read_names.add(name)
            try:
                digests, vectors = self._load(name)
            except Exception as error:  # a damaged file raises errors of many types
                file = self.folder / f"{name}{KEYS}"
                logger.warning("'%s' is damaged; its texts are encoded again: %s", file, error_line(error, 100))
                continue
            rows = np.arange(min(len(digests), len(vectors)), dtype=np.uint64)
            file_number = np.uint64(len(self._names))
            self._names.append(name)
            self._index.add(_heads(digests[: len(rows)]), rows | file_number << ROW_BITS)

    def _load(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Digests, `(rows, 16)`, and vectors, `(rows, width)`, of a pair of files, memory-mapped."""
        digests = np.load(self.folder / f"{name}{KEYS}", mmap_mode="r")
        vectors = np.load(self.folder / f"{name}{VECTORS}", mmap_mode="r")
        return np.asarray(digests).view(np.uint8).reshape(-1, DIGEST), np.asarray(vectors)


def _digests(keys: Sequence[Hashable]) -> np.ndarray:
    """The names of keys on disk, `(keys, 16)`, uint8."""
    names = []
    for key in keys:
        names.append(hashlib.blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=DIGEST).digest())
    return np.frombuffer(b"".join(names), np.uint8).reshape(-1, DIGEST)


def _heads(digests: np.ndarray) -> np.ndarray:
    """The first eight bytes of digests as numbers, `(rows,)`, uint64."""
    heads: np.ndarray = digests.view(np.uint64)[:, 0]
    return heads
