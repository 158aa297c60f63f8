"""Sentence embeddings from anything with a sentence-transformers style `encode`, and its routes by language."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import langcodes
import numpy as np
from typing_extensions import TypedDict

from hf_xlsr.data.languages import nearest_tag
from hf_xlsr.data.prompts import ROLES, Prompts, PromptTable
from hf_xlsr.utils.errors import XlsrError, require_choice, require_positive
from hf_xlsr.utils.vectors import as_vectors


class Encoder(Protocol):
    """Interface of encoders: `SentenceTransformer.encode`, or a method with the same arguments."""

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        """Takes a list of texts, `batch_size`, `convert_to_numpy`, `normalize_embeddings` and `show_progress_bar`."""


class EncodingOptions(TypedDict, total=False):
    """Options of `embed`, for functions that pass them on.

    Attributes:
        prompt: Put before texts instead of the model's own prompts: one for all (`"query: "`, or `""` for none), or by
            name: a language, `query`, `document`, `source`, `target` or `default`. None: the model's own.
        batch_size: Texts encoded at a time (64).
        routes: Language -> route, for an encoder whose routes are not named after languages.
        show_progress_bar: Show one while encoding.
    """

    prompt: Prompts
    batch_size: int
    routes: Mapping[str, str] | None
    show_progress_bar: bool


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """Vectors `(..., width)` of a floating type divided by their lengths; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


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


def call_encode(encoder: Encoder, texts: list[str], *, prompt: str, task: str | None = None, **options: Any) -> Any:
    """Calls `encode` so that this prompt stands before each text, and no other.

    The prompt is handed over, so that chat templates and poolings without prompts know it. What an encoder does by itself
    is left to it: one without prompts of its own gets texts that begin with the prompt, and none is told its default.
    """
    if task is not None:
        options["task"] = task
    if prompt != PromptTable.of(encoder).text():
        if hasattr(encoder, "prompts"):
            options["prompt"] = prompt
        else:
            texts = [prompt + text for text in texts]
    return encoder.encode(texts, **{"convert_to_numpy": True, **options})


def embed(
    encoder: Encoder,
    texts: Iterable[str],
    *,
    language: str | None = None,
    role: str | None = None,
    prompt: Prompts = None,
    batch_size: int = 64,
    routes: Mapping[str, str] | None = None,
    normalize: bool = True,
    show_progress_bar: bool = False,
) -> np.ndarray:
    """Encodes texts; a text that occurs several times is encoded once.

    Args:
        encoder: Anything with a sentence-transformers style `encode`.
        texts: The sentences.
        language: Their language, required by a model with a route for each language (`route_of`); it and the role choose
            among prompts by name, see `PromptTable`.
        role: What the texts are in a search, `query` or `document`, or in a pair, `source` or `target`. Queries and
            documents also take the route of that name.
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
        >>> prompts = {"de": "Frage: ", "default": "q: "}
        >>> embed(Lengths(), ["a"], language="de", prompt=prompts, normalize=False).tolist()
        [[8.0, 1.0]]
    """
    texts = texts if isinstance(texts, str) else list(texts)
    if isinstance(texts, str) or not texts:
        raise XlsrError(f"`texts` must be a list of at least one sentence, got {texts[:40]!r}.")
    require_positive("batch_size", batch_size)
    positions: dict[str, int] = {}
    spread = np.array([positions.setdefault(text, len(positions)) for text in texts])

    task = route_of(encoder, language, routes)
    if task is None and role in ROLES and role in routes_of(encoder):
        task = role
    encoded = call_encode(
        encoder,
        list(positions),
        prompt=PromptTable.of(encoder).given(prompt).text(role=role, language=language),
        task=task,
        batch_size=batch_size,
        normalize_embeddings=normalize,
        show_progress_bar=show_progress_bar,
    )

    vectors = as_vectors(encoded, "the encoder's output")
    if len(vectors) != len(positions):
        raise XlsrError(f"`encode` must return a vector per text, got {vectors.shape} for {len(positions)} texts.")
    if normalize:
        vectors = unit_length(vectors)
    return vectors if len(positions) == len(texts) else vectors[spread]
