"""An encoder whose vectors lack what tells their language, for everything that takes an encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hf_xlsr.encoders.debias.removal import Debias
from hf_xlsr.encoders.encoding import default_prompt
from hf_xlsr.encoders.routing import route_of
from hf_xlsr.utils.errors import XlsrError


class DebiasedEncoder:
    """Wraps an encoder; texts are given with their language as `task`, as to one with an encoder for each language.

    Its `routes` are the fitted languages, so that protocols and mining tell it the language by themselves.

    Args:
        encoder: Anything with a sentence-transformers style `encode`.
        debias: What is removed, fitted on this encoder's vectors.
        routes: Language -> route of an encoder whose routes do not bear the languages' names.

    Example:
        >>> class Lengths:
        ...     def encode(self, texts, **kwargs):
        ...         return np.array([[len(text), 1.0] for text in texts])
        >>> fitted = Debias(components={"fr": np.array([[1.0], [0.0]])}, counts={"fr": 9}, shares={"fr": 0.5})
        >>> DebiasedEncoder(Lengths(), fitted).encode(["un", "deux"], task="fr").tolist()
        [[0.0, 1.0], [0.0, 1.0]]
    """

    def __init__(self, encoder: Any, debias: Debias, routes: Mapping[str, str] | None = None) -> None:
        self.encoder, self.debias = encoder, debias
        self.routes = debias.languages
        self.default_prompt_name = default_prompt(encoder)
        self._routes = routes

    def encode(
        self, texts: Sequence[str], *, task: str | None = None, normalize_embeddings: bool = False, **options: Any
    ) -> np.ndarray:
        """The vectors of texts of one language.

        Args:
            texts: The sentences.
            task: Their language.
            normalize_embeddings: Bring each to length 1, after the removal.
            **options: Go to the encoder as they are.

        Returns:
            `(texts, width)`, float32.

        Raises:
            XlsrError: no language is given, or one that was not fitted.
        """
        if task is None:
            raise XlsrError(
                f"the language of the texts is not given; say task=, one of {', '.join(self.debias.languages)}."
            )
        route = route_of(self.encoder, task, self._routes)
        if route is not None:
            options["task"] = route
        # Removed from the vectors as they were when it was fitted: before they are brought to length 1.
        options["convert_to_numpy"] = True
        vectors = np.asarray(self.encoder.encode(list(texts), normalize_embeddings=False, **options), np.float32)
        return self.debias.apply(vectors, task, normalize=normalize_embeddings)
