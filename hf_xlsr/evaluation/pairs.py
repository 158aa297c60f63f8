"""Sentence pairs: languages of the sides, vectors, nearest rows, cosines, and features for a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.data.prompts import PromptTable
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, check_directions, embed
from hf_xlsr.evaluation.containers import parallel_lists
from hf_xlsr.evaluation.languages import sentence_languages

Languages = str | tuple[str, str]
Roles = tuple[str, str]
PAIR_ROLES: Roles = ("source", "target")


def sides_of(language: Languages) -> tuple[str, str]:
    """The languages of both sides of a pair: one code, two, or a text with two codes (`en+de`, or `en-de` in lower case).

    Examples:
        >>> sides_of("en"), sides_of("en-es"), sides_of("zh-Hans+en"), sides_of(("pt-BR", "en")), sides_of("pt-BR")
        (('en', 'en'), ('en', 'es'), ('zh-Hans', 'en'), ('pt-BR', 'en'), ('pt-BR', 'pt-BR'))
    """
    if not isinstance(language, str):
        return language
    first, _, second = sentence_languages(language).partition("+")
    return first, second or first


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
    first_texts, second_texts = sides
    first_language, second_language = sides_of(language)
    first_role, second_role = roles

    table = PromptTable.of(encoder).given(encoding.get("prompt"))
    first_prompt = table.text(role=first_role, language=first_language)
    second_prompt = table.text(role=second_role, language=second_language)

    embed_side = partial(embed, encoder, normalize=normalize, **encoding)
    if first_language == second_language and first_prompt == second_prompt:
        vectors = embed_side([*first_texts, *second_texts], language=first_language, role=first_role)
        return vectors[: len(first_texts)], vectors[len(first_texts) :]

    first_vectors = embed_side(first_texts, language=first_language, role=first_role)
    second_vectors = embed_side(second_texts, language=second_language, role=second_role)
    return first_vectors, second_vectors


def pair_cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The cosine of each row of `first` with the same row of `second`, `(n,)`, float64; 0 with a zero vector.

    Equal rows give exactly 1, so that pairs of equal sentences are tied.
    """
    u = first.astype(np.float64)
    v = second.astype(np.float64)
    squares = row_products(u, u) * row_products(v, v)
    lengths = np.sqrt(squares)
    return row_products(u, v) / np.where(lengths > 0, lengths, 1)


def row_products(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The inner product of each row of `first` with the same row of `second`, `(n,)`."""
    products: np.ndarray = np.einsum("nd,nd->n", first, second)
    return products


def pair_features(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """`[u, v, |u - v|, u * v]` of each pair of rows, `(n, 4 * width)`: the input of classifiers of sentence pairs."""
    distances = np.abs(first - second)
    products = first * second
    return np.concatenate([first, second, distances, products], axis=1)


def both_ways(
    metric: str, forward: np.ndarray, backward: np.ndarray
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Values and outcomes of a share that is measured in both directions, from whether each pair counts, bool `(n,)`."""
    forward_name = f"source_to_target_{metric}"
    backward_name = f"target_to_source_{metric}"
    forward_share = float(forward.mean())
    backward_share = float(backward.mean())

    values = {
        forward_name: forward_share,
        backward_name: backward_share,
        metric: (forward_share + backward_share) / 2,
        "pairs": len(forward),
    }

    outcomes = {
        forward_name: forward,
        backward_name: backward,
        metric: (forward.astype(np.float64) + backward) / 2,
    }
    return values, outcomes


def encode_pairs(
    encoder: Encoder,
    sources: Sequence[str],
    targets: Sequence[str],
    languages: tuple[str, str],
    **encoding: Unpack[EncodingOptions],
) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of both sides of parallel sentences."""
    return embed_sides(encoder, parallel_lists(sources, targets), languages, **encoding)


def embed_sides(
    encoder: Encoder,
    sides: tuple[Sequence[str], Sequence[str]],
    languages: tuple[str, str],
    *,
    roles: Roles = PAIR_ROLES,
    **encoding: Unpack[EncodingOptions],
) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of texts in two languages, `(n, width)`, none of them zero."""
    vectors = embed_pairs(encoder, sides, languages, roles=roles, **encoding)
    for side_vectors, texts in zip(vectors, sides, strict=True):
        check_directions(side_vectors, texts)
    return vectors


def right_both_ways(source_vectors: np.ndarray, target_vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether each row's nearest neighbour is the same row of the other side, by unit vectors `(n, width)`."""
    rows = np.arange(len(source_vectors))
    forward = nearest_row(source_vectors, target_vectors) == rows
    backward = nearest_row(target_vectors, source_vectors) == rows
    return forward, backward


def right_texts_both_ways(
    source_vectors: np.ndarray,
    target_vectors: np.ndarray,
    sources: Sequence[Any],
    targets: Sequence[Any],
) -> tuple[np.ndarray, np.ndarray]:
    """As `right_both_ways`, but by text: a row is right if the text that it finds equals that of its translation.

    This is the accuracy of `TranslationEvaluator` of sentence-transformers, and that during training. `sources` and
    `targets` are texts or their hashes.
    """
    source_texts = np.asarray(sources)
    target_texts = np.asarray(targets)
    forward = target_texts[nearest_row(source_vectors, target_vectors)] == target_texts
    backward = source_texts[nearest_row(target_vectors, source_vectors)] == source_texts
    return forward, backward


def nearest_row(queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """The row of each query's nearest candidate, `(n,)`; ties go to the lowest row."""
    from hf_xlsr.mining.search.neighbours import nearest_neighbours

    _, rows = nearest_neighbours(queries, candidates)
    return rows[:, 0]
