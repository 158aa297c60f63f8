"""An encoder that remembers: several protocols over the same sentences encode each of them once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hf_xlsr.evaluation.routing import routes_of


class RememberedEncoder:
    """Wraps an encoder and keeps the vector of each text, by the text, its route, and whether it was normalised.

    Memory grows by one float32 vector for each distinct text; `forget` frees it.

    Args:
        encoder: Anything with a sentence-transformers style `encode`.

    Example:
        >>> class Lengths:
        ...     def encode(self, texts, **kwargs):
        ...         print("encoding", texts)
        ...         return np.array([[len(text), 1.0] for text in texts])
        >>> encoder = RememberedEncoder(Lengths())
        >>> encoder.encode(["a", "bc"]).shape, encoder.encode(["bc", "def"]).shape
        encoding ['a', 'bc']
        encoding ['def']
        ((2, 2), (2, 2))
    """

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self.routes = routes_of(encoder)
        self._vectors: dict[tuple[str | None, bool, str], np.ndarray] = {}

    def encode(
        self, texts: Sequence[str], *, task: str | None = None, normalize_embeddings: bool = False, **options: Any
    ) -> np.ndarray:
        """The vectors of the texts, `(texts, width)`; `options` go to the encoder as they are."""
        known = self._vectors
        keys = [(task, normalize_embeddings, text) for text in texts]
        missing = list(dict.fromkeys(text for key, text in zip(keys, texts, strict=True) if key not in known))
        if missing:
            if task is not None:
                options["task"] = task
            fresh = self.encoder.encode(missing, normalize_embeddings=normalize_embeddings, **options)
            for text, vector in zip(missing, np.asarray(fresh, np.float32), strict=True):
                known[task, normalize_embeddings, text] = vector
        return np.stack([known[key] for key in keys])

    def forget(self) -> None:
        """Frees all kept vectors."""
        self._vectors.clear()
