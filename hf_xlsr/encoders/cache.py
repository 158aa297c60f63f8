"""Cache of embeddings: several protocols over the same sentences encode each of them once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from hf_xlsr.encoders.encoding import default_prompt, unit_length
from hf_xlsr.encoders.routing import routes_of
from hf_xlsr.encoders.vector_store import VectorStore
from hf_xlsr.utils.vectors import as_array


class CachedEncoder:
    """Wraps an encoder and keeps the embedding of each text, by text, route and prompt.

    Embeddings are kept as the encoder returns them and normalised on request, so both kinds share the cache. Without a
    store, memory grows by one float32 vector per distinct text.

    Args:
        encoder: Anything with a sentence-transformers style `encode`.
        store: Keeps the embeddings on disk.

    Attributes:
        encoded: Number of texts that the encoder has encoded.
        seconds: Time that it took.

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
        self.encoder = encoder
        self.encoded, self.seconds = 0, 0.0
        self.routes = routes_of(encoder)
        self.default_prompt_name = default_prompt(encoder)
        self._store: VectorStore | _InMemory = store or _InMemory()

    def encode(
        self, texts: Sequence[str], *, task: str | None = None, normalize_embeddings: bool = False, **options: Any
    ) -> np.ndarray:
        """Embeddings of the texts, `(texts, width)`, float32; `options` are passed to the encoder."""
        keys = [(task, options.get("prompt"), text) for text in texts]
        found = self._store.find(keys)
        missing = list(dict.fromkeys(key for key, vector in zip(keys, found, strict=True) if vector is None))
        if missing:
            route = {} if task is None else {"task": task}
            start = perf_counter()
            fresh = self.encoder.encode([key[2] for key in missing], normalize_embeddings=False, **route, **options)
            self._store.add(missing, as_array(fresh))
            self.encoded, self.seconds = self.encoded + len(missing), self.seconds + perf_counter() - start
            found = self._store.find(keys)
        vectors = np.stack([vector for vector in found if vector is not None])
        return unit_length(vectors) if normalize_embeddings else vectors


class _InMemory:
    """A `VectorStore` without a disk."""

    def __init__(self) -> None:
        self._vectors: dict[Hashable, np.ndarray] = {}

    def find(self, keys: Sequence[Hashable]) -> list[np.ndarray | None]:
        return [self._vectors.get(key) for key in keys]

    def add(self, keys: Sequence[Hashable], vectors: np.ndarray) -> None:
        self._vectors.update(zip(keys, vectors, strict=True))
