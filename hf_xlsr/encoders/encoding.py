"""Sentence embeddings from anything with a sentence-transformers style `encode`, and its routes by language."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import langcodes
import numpy as np
from typing_extensions import TypedDict

from hf_xlsr.data.languages import nearest_tag
from hf_xlsr.data.prompts import ROLES, Prompts, PromptTable
from hf_xlsr.utils.errors import XlsrError, require_choice, require_positive
from hf_xlsr.utils.vectors import as_vectors

BATCH_SIZE = 64
"""Texts that are encoded at a time, where nobody says another number."""

RUN_BATCH_SIZE = 128
"""The same for evaluation and teachers of a run; another number would change the last bits of their results."""

LONGEST = 2**20
"""Tokens of the longest text; a tokenizer without a limit says 1e30."""


class Encoder(Protocol):
    """Interface of encoders: `SentenceTransformer.encode`, or a method with the same arguments."""

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        """Takes a list of texts, `batch_size`, `convert_to_numpy`, `normalize_embeddings` and `show_progress_bar`."""


class EncodingOptions(TypedDict, total=False):
    """Options of `embed`, for functions that pass them on.

    Attributes:
        prompt: Put before texts instead of the model's own prompts: one for all (`"query: "`, or `""` for none), or by
            name: a language, `query`, `document`, `source`, `target` or `default`. None: the model's own.
        batch_size: Texts encoded at a time, `BATCH_SIZE` by default.
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


def check_directions(vectors: np.ndarray, texts: Sequence[str]) -> None:
    """Checks that no vector is zero: all candidates would be equally near to it, and the first would be found."""
    zero = np.flatnonzero(~vectors.any(axis=1))
    if zero.size:
        text = texts[zero[0]][:60]
        raise XlsrError(f"The vector of {text!r} is zero and has no direction ({zero.size} such texts). Remove it.")


def routes_of(encoder: Any) -> tuple[str, ...]:
    """The names of an encoder's routes: its attribute `routes`, or those of its sentence-transformers `Router`."""
    routes = getattr(encoder, "routes", None) or ()
    if not routes and hasattr(encoder, "children"):
        for module in encoder.children():
            routes = getattr(module, "sub_modules", routes)  # of a Router, without an import of its class
    return tuple(routes)


def route_of(
    encoder: Any,
    language: str | None,
    routes: Mapping[str, str] | None = None,
) -> str | None:
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
        tag = nearest_tag(language, routes)
        if tag is None:  # the default route would embed it by another encoder
            raise XlsrError(f"`routes` must include language {language!r}, got {', '.join(routes)}.")
        require_choice("routes", routes[tag], names)
        return routes[tag]

    languages = [name for name in names if langcodes.tag_is_valid(name)]
    route = nearest_tag(language, languages)
    if route is None and names and len(languages) == len(names):
        raise XlsrError(
            f"The encoder has routes for {', '.join(names)}, got language {language!r}. "
            "Give --languages, or --routes de=en."
        )
    return route


def call_encode(
    encoder: Encoder,
    texts: list[str],
    *,
    prompt: str,
    task: str | None = None,
    **options: Any,
) -> Any:
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
    batch_size: int = BATCH_SIZE,
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
    is_list = not isinstance(texts, str)
    texts = list(texts)
    if not is_list:
        raise XlsrError(f"`texts` must be a list of sentences, got one text, {''.join(texts)[:40]!r}.")
    if not texts:
        raise XlsrError("`texts` must be a list of at least one sentence, got none: no text is left to encode.")
    require_positive("batch_size", batch_size)

    task = route_of(encoder, language, routes)
    if task is None and role in ROLES and role in routes_of(encoder):
        task = role
    unique_texts = list(dict.fromkeys(texts))
    encoded = call_encode(
        encoder,
        unique_texts,
        prompt=PromptTable.of(encoder).given(prompt).text(role=role, language=language),
        task=task,
        batch_size=batch_size,
        normalize_embeddings=normalize,
        show_progress_bar=show_progress_bar,
    )

    vectors = as_vectors(encoded, "the encoder's output", unique_texts)
    if len(vectors) != len(unique_texts):
        raise XlsrError(f"`encode` must return a vector per text, got {vectors.shape} for {len(unique_texts)} texts.")
    if normalize:
        vectors = unit_length(vectors)
    if len(unique_texts) == len(texts):
        return vectors
    row_of_text = {text: row for row, text in enumerate(unique_texts)}
    return vectors[[row_of_text[text] for text in texts]]
