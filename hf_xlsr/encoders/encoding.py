"""Sentence embeddings from anything with a sentence-transformers style `encode`, and its routes by language."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import langcodes
import numpy as np
from typing_extensions import TypedDict

from hf_xlsr.data.languages import nearest_tag
from hf_xlsr.utils.errors import XlsrError, require_choice, require_positive
from hf_xlsr.utils.vectors import as_vectors


class Encoder(Protocol):
    """Interface of encoders: `SentenceTransformer.encode`, or a method with the same arguments."""

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        """Takes a list of texts, `batch_size`, `convert_to_numpy`, `normalize_embeddings` and `show_progress_bar`."""


class EncodingOptions(TypedDict, total=False):
    """Options of `embed`, for functions that pass them on.

    Attributes:
        prompt: Put before every text, for instance `"query: "`, instead of the model's default prompt.
        batch_size: Texts encoded at a time (64).
        routes: Language -> route, for an encoder whose routes are not named after languages.
        show_progress_bar: Show one while encoding.
    """

    prompt: str
    batch_size: int
    routes: Mapping[str, str] | None
    show_progress_bar: bool


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """Vectors `(..., width)` of a floating type divided by their lengths; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def default_prompt(encoder: Any) -> str | None:
    """Name of the prompt that a `SentenceTransformer` puts before texts by default."""
    return getattr(encoder, "default_prompt_name", None)


def routes_of(encoder: Any) -> tuple[str, ...]:
    """The names of an encoder's routes: its attribute `routes`, or those of its sentence-transformers `Router`."""
    if getattr(encoder, "routes", None):
        return tuple(encoder.routes)
    children = list(encoder.children()) if hasattr(encoder, "children") else []
    # A Router is known by its parts, so that nothing is imported for encoders that have none.
    routers = [module for module in children if hasattr(module, "sub_modules") and hasattr(module, "default_route")]
    return tuple(routers[0].sub_modules) if routers else ()


def route_of(encoder: Any, language: str | None, routes: Mapping[str, str] | None = None) -> str | None:
    """The `task` of sentence-transformers that encodes a language's sentences by its route.

    It is None for an encoder without routes, or with other routes (`query` and `document`). `routes` names the route of
    each language, for models whose routes are not named after languages.

    Examples:
        >>> class OneForEach:
        ...     routes = ("en", "zh")
        >>> route_of(OneForEach(), "cmn")
        'zh'
    """
    names = routes_of(encoder)
    if routes:
        if (tag := nearest_tag(language, routes)) is None:  # the default route would embed it by another encoder
            raise XlsrError(f"`routes` must include language {language!r}, got {', '.join(routes)}.")
        require_choice("routes", routes[tag], names)
        return routes[tag]
    of_languages = [name for name in names if langcodes.tag_is_valid(name)]
    found = nearest_tag(language, of_languages)
    if found or len(of_languages) < max(len(names), 1):
        return found
    raise XlsrError(
        f"The encoder has routes for {', '.join(names)}, got language {language!r}. Give --languages, or --routes de=en."
    )


def embed(
    encoder: Encoder,
    texts: Iterable[str],
    *,
    language: str | None = None,
    prompt: str = "",
    batch_size: int = 64,
    routes: Mapping[str, str] | None = None,
    normalize: bool = True,
    show_progress_bar: bool = False,
) -> np.ndarray:
    """Encodes texts; a text that occurs several times is encoded once.

    Args:
        encoder: Anything with a sentence-transformers style `encode`.
        texts: The sentences.
        language: Their language, required by a model with a route for each language (`route_of`).
        normalize: Normalise each vector to length 1.
        prompt: See `EncodingOptions` for this and the others.

    Returns:
        `(len(texts), width)`, float32, C-contiguous, each row of length 1 (a zero vector stays zero).

    Examples:
        >>> class Lengths:
        ...     def encode(self, texts, **kwargs):
        ...         return np.array([[len(text), 1.0] for text in texts])
        >>> embed(Lengths(), ["a", "bcde", "a"]).shape
        (3, 2)
    """
    texts = texts if isinstance(texts, str) else list(texts)
    if isinstance(texts, str) or not texts:
        raise XlsrError(f"`texts` must be a list of at least one sentence, got {texts[:40]!r}.")
    require_positive("batch_size", batch_size)
    positions: dict[str, int] = {}
    spread = np.array([positions.setdefault(text, len(positions)) for text in texts])
    task = route_of(encoder, language, routes)
    more = {} if task is None else {"task": task}
    if prompt and default_prompt(encoder):
        more["prompt"] = ""  # sentence-transformers would put its default prompt before this one
    encoded = encoder.encode(
        [prompt + text for text in positions],
        batch_size=batch_size,
        convert_to_numpy=True,
        normalize_embeddings=normalize,
        show_progress_bar=show_progress_bar,
        **more,
    )
    vectors = as_vectors(encoded, "the encoder's output")
    if len(vectors) != len(positions):
        raise XlsrError(f"`encode` must return a vector per text, got {vectors.shape} for {len(positions)} texts.")
    if normalize:
        vectors = unit_length(vectors)
    return vectors if len(positions) == len(texts) else vectors[spread]
