"""Sentence vectors from anything with a sentence-transformers style `encode`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from typing_extensions import TypedDict

from hf_xlsr.encoders.routing import route_of
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.vectors import as_vectors


class Encoder(Protocol):
    """What the protocols ask of a model: `SentenceTransformer.encode`, or a method that takes the same arguments."""

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        """Takes a list of texts, `batch_size`, `convert_to_numpy`, `normalize_embeddings` and `show_progress_bar`."""


class EncodingOptions(TypedDict, total=False):
    """How sentences become vectors: what every protocol takes as `**encoding` and hands to `embed`.

    Attributes:
        prompt: Put before every text, for instance `"query: "`.
        batch_size: Texts encoded at a time (64).
        routes: Language -> route of an encoder whose routes do not bear the languages' names.
        show_progress_bar: Show one while encoding.
    """

    prompt: str
    batch_size: int
    routes: Mapping[str, str] | None
    show_progress_bar: bool


def check_batch_size(batch_size: int) -> None:
    """Refuses batches of no sentence.

    Raises:
        XlsrError: `batch_size` is below 1.
    """
    if batch_size < 1:
        raise XlsrError(f"batch_size is {batch_size}; it takes a whole number above 0.")


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """Each vector over its length; a zero vector stays zero.

    Args:
        vectors: `(..., width)`, of a floating type.

    Returns:
        The same shape and type.

    Example:
        >>> unit_length(np.array([[3.0, 4.0], [0.0, 0.0]]))
        array([[0.6, 0.8],
               [0. , 0. ]])
    """
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: np.ndarray = vectors / np.where(lengths > 0, lengths, 1)
    return unit


def default_prompt(encoder: Any) -> str | None:
    """The name of the prompt that a `SentenceTransformer` puts before texts unless it is told otherwise."""
    return getattr(encoder, "default_prompt_name", None)


def embed(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    language: str | None = None,
    prompt: str = "",
    batch_size: int = 64,
    routes: Mapping[str, str] | None = None,
    normalize: bool = True,
    show_progress_bar: bool = False,
) -> np.ndarray:
    """Encodes the texts; a text that occurs several times is encoded once, and its vector is the same each time.

    Args:
        encoder: Anything with a sentence-transformers style `encode`.
        texts: The sentences.
        language: Their language; a model with an encoder for each language needs it to choose (`route_of`).
        prompt: Put before every text, for instance `"query: "`, in place of a prompt that the model has by default.
        batch_size: Texts encoded at a time.
        routes: Language -> route of an encoder whose routes do not bear the languages' names.
        normalize: Bring each vector to length 1; else vectors stay as the encoder gives them.
        show_progress_bar: Handed to `encode`.

    Returns:
        `(len(texts), width)`, float32, C-contiguous, each row of length 1 (a zero vector stays zero).

    Raises:
        XlsrError: there is no text, a single string was given, `batch_size` is below 1, the encoder routes by language
            and got none that it has, or it gave something else than one finite vector for each text.

    Example:
        >>> class Lengths:
        ...     def encode(self, texts, **kwargs):
        ...         return np.array([[len(text), 1.0] for text in texts])
        >>> embed(Lengths(), ["a", "bcde", "a"]).shape
        (3, 2)
    """
    if isinstance(texts, str):
        raise XlsrError(f"texts is the single string {texts[:40]!r}; give a list of sentences.")
    if not len(texts):
        raise XlsrError("there are no texts to encode; give at least one sentence.")
    check_batch_size(batch_size)
    positions: dict[str, int] = {}
    spread = np.array([positions.setdefault(text, len(positions)) for text in texts])
    task = route_of(encoder, language, routes)
    more = {} if task is None else {"task": task}
    if prompt and default_prompt(encoder):
        more["prompt"] = ""  # sentence-transformers would put the model's own in front of this one
    encoded = encoder.encode(
        [prompt + text for text in positions],
        batch_size=batch_size,
        convert_to_numpy=True,
        normalize_embeddings=normalize,
        show_progress_bar=show_progress_bar,
        **more,
    )
    if np.ndim(encoded) != 2 or len(encoded) != len(positions):
        raise XlsrError(
            f"the encoder gave an array of shape {np.shape(encoded)} for {len(positions)} texts; "
            "its encode has to return one vector for each."
        )
    vectors = as_vectors(encoded, "the encoder's output")
    if normalize:
        vectors = unit_length(vectors)
    return vectors if len(positions) == len(texts) else vectors[spread]
