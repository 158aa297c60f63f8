"""An encoder that removes the language bias of its embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hf_xlsr.encoders.debias.removal import Debias
from hf_xlsr.encoders.encoding import default_prompt
from hf_xlsr.encoders.routing import route_of


class DebiasedEncoder:
    """Wraps an encoder; the language of the texts is given as `task`.

    Its `routes` are the fitted languages, so protocols and mining pass the language. `routes` names those of the
    encoder that are not named after languages.
    """

    def __init__(self, encoder: Any, debias: Debias, routes: Mapping[str, str] | None = None) -> None:
        self.encoder, self.debias = encoder, debias
        self.routes = debias.languages
        self.default_prompt_name = default_prompt(encoder)
        self._routes = routes

    def encode(
        self, texts: Sequence[str], *, task: str | None = None, normalize_embeddings: bool = False, **options: Any
    ) -> np.ndarray:
        """Embeddings of texts of the language `task`, `(texts, width)`, float32, normalised after the removal."""
        language = self.debias.language_of(task)
        route = route_of(self.encoder, task, self._routes)
        if route is not None:
            options["task"] = route
        # Fitted on embeddings that were not normalised, so it is removed from such.
        options["convert_to_numpy"] = True
        vectors = np.asarray(self.encoder.encode(list(texts), normalize_embeddings=False, **options), np.float32)
        return self.debias.apply(vectors, language, normalize=normalize_embeddings)
