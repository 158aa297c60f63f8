"""Cache of embeddings: several protocols over the same sentences encode each of them once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hf_xlsr.encoders.encoding import default_prompt, unit_length
from hf_xlsr.encoders.routing import routes_of


class CachedEncoder:
    """Wraps an encoder and keeps the embedding of each text, by text, route and prompt.

    Embeddings are kept as the encoder returns them and normalised on request, so both kinds share the cache. Memory grows
    by one float32 vector per distinct text.

    Args:
        encoder: Anything with a sentence-transformers style `encode`.

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

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self.routes = routes_of(encoder)
        self.default_prompt_name = default_prompt(encoder)
        self._vectors: dict[tuple[Any, Any, str], np.ndarray] = {}

    def encode(
        self, texts: Sequence[str], *, task: str | None = None, normalize_embeddings: bool = False, **options: Any
    ) -> np.ndarray:
        """Embeddings of the texts, `(texts, width)`, float32; `options` are passed to the encoder."""
        known = self._vectors
        keys = [(task, options.get("prompt"), text) for text in texts]
        missing = list(dict.fromkeys(text for key, text in zip(keys, texts, strict=True) if key not in known))
        if missing:
            route = {} if task is None else {"task": task}
            fresh = self.encoder.encode(missing, normalize_embeddings=False, **route, **options)
            for text, vector in zip(missing, np.asarray(fresh, np.float32), strict=True):
                known[task, options.get("prompt"), text] = vector
        vectors = np.stack([known[key] for key in keys])
        return unit_length(vectors) if normalize_embeddings else vectors
