"""Sentence pairs: languages of the sides, vectors, cosines, and features for a classifier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.data.prompts import PromptTable
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed
from hf_xlsr.evaluation.languages import sentence_languages

Languages = str | tuple[str, str]


def sides_of(language: Languages) -> tuple[str, str]:
    """The languages of both sides of a pair: one code, two, or a text with two codes (`en+de`, or `en-de` in lower case).

    Examples:
        >>> sides_of("en"), sides_of("en-es"), sides_of("zh-Hans+en"), sides_of(("pt-BR", "en")), sides_of("pt-BR")
        (('en', 'en'), ('en', 'es'), ('zh-Hans', 'en'), ('pt-BR', 'en'), ('pt-BR', 'pt-BR'))
    """
    if isinstance(language, str):
        first, _, second = sentence_languages(language).partition("+")
        return first, second or first
    return language


def distinct_languages(language: Languages) -> Languages:
    """One code where both sides are in one language, else two."""
    first, second = sides_of(language)
    return first if first == second else (first, second)


def embed_pairs(
    encoder: Encoder,
    sides: Sequence[Sequence[str]],
    language: Languages,
    *,
    normalize: bool = True,
    roles: tuple[str | None, str | None] = (None, None),
    **encoding: Unpack[EncodingOptions],
) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of both sides of pairs, two matrices `(n, width)`, float32.

    A sentence that occurs on both sides of one language is encoded once, if it has the same prompt there. `roles` are
    those of `embed`.
    """
    first, second = sides
    one, other = sides_of(language)
    table = PromptTable.of(encoder).given(encoding.get("prompt"))
    prompts = table.text(role=roles[0], language=one), table.text(role=roles[1], language=other)
    if one == other and prompts[0] == prompts[1]:
        both = embed(encoder, [*first, *second], language=one, role=roles[0], normalize=normalize, **encoding)
        return both[: len(first)], both[len(first) :]

    u = embed(encoder, first, language=one, role=roles[0], normalize=normalize, **encoding)
    v = embed(encoder, second, language=other, role=roles[1], normalize=normalize, **encoding)
    return u, v


def pair_cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The cosine of each row of `first` with the same row of `second`, `(n,)`, float64; 0 with a zero vector.

    Equal rows give exactly 1, so that pairs of equal sentences are tied.
    """
    u, v = first.astype(np.float64), second.astype(np.float64)
    lengths = np.sqrt(np.einsum("nd,nd->n", u, u) * np.einsum("nd,nd->n", v, v))
    return np.einsum("nd,nd->n", u, v) / np.where(lengths > 0, lengths, 1)


def pair_features(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """`[u, v, |u - v|, u * v]` of each pair of rows, `(n, 4 * width)`: the input of classifiers of sentence pairs."""
    return np.concatenate([first, second, np.abs(first - second), first * second], axis=1)
