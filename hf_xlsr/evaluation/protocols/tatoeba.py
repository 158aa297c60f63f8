"""Protocol `tatoeba`: translation retrieval accuracy by cosine nearest neighbour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed
from hf_xlsr.evaluation.registry import pair_protocol
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.utils.errors import XlsrError


def tatoeba(
    encoder: Encoder,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    languages: tuple[str, str] = ("en", "fr"),
    name: str = "tatoeba",
    split: str = "test",
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """Retrieval accuracy over parallel sentences, both ways, by cosine among all of them.

    Sentence `i` is correct when its nearest neighbour is number `i` of the other side. Sentences are compared by
    number, not by text: of two equal targets the first is found, so the second one's source counts as wrong.

    Args:
        encoder: Anything with a sentence-transformers style `encode`.
        sources: Sentences of the first language.
        targets: Their translations, in the same order.
        languages: Codes of the two languages.
        name: The dataset.
        split: The split of it.
        encoding: See `EncodingOptions`.

    Returns:
        `source_to_target_accuracy`, `target_to_source_accuracy`, `accuracy` (their mean) and `pairs`, under
        `tatoeba/en-fr/test/`; another dataset is a prefix, `tico19-tatoeba/en-fr/test/`.

    Relations:
        sentence-transformers' `TranslationEvaluator` gives the same accuracies when no sentence occurs twice; it
        compares texts, so equal sentences count as correct there. `tatoeba_laser` gives the complements,
        `tatoeba_xtreme` one of the two directions, `tatoeba_mteb` F1 over the same neighbours.
    """
    vectors = encode_pairs(encoder, sources, targets, languages, **encoding)
    forward, backward = right_both_ways(*vectors)
    return measured(name, "tatoeba", languages, split, *both_ways("accuracy", forward, backward))


def both_ways(
    metric: str, forward: np.ndarray, backward: np.ndarray
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Values and outcomes of a share that is measured in both directions, from whether each pair counts, bool `(n,)`."""
    outcomes = {
        f"source_to_target_{metric}": forward,
        f"target_to_source_{metric}": backward,
        metric: (forward.astype(np.float64) + backward) / 2,
    }
    one, other = float(forward.mean()), float(backward.mean())
    return dict(zip(outcomes, (one, other, (one + other) / 2), strict=True)) | {"pairs": len(forward)}, outcomes


def encode_pairs(
    encoder: Encoder,
    sources: Iterable[str],
    targets: Iterable[str],
    languages: tuple[str, str],
    **encoding: Unpack[EncodingOptions],
) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of both sides of parallel sentences, each side encoded in its own language."""
    sources, targets = list(sources), list(targets)
    if len(sources) != len(targets):
        raise XlsrError(f"`targets` must be as many as `sources`, {len(sources)}, got {len(targets)}.")
    return embed_sides(encoder, (sources, targets), languages, **encoding)


def embed_sides(
    encoder: Encoder,
    sides: tuple[Sequence[str], Sequence[str]],
    languages: tuple[str, str],
    **encoding: Unpack[EncodingOptions],
) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of texts in two languages, `(n, width)`, none of them zero."""
    found = []
    for texts, language in zip(sides, languages, strict=True):
        found.append(embed(encoder, texts, language=language, **encoding))
        check_directions(found[-1], texts)
    return found[0], found[1]


def check_directions(vectors: np.ndarray, texts: Sequence[str]) -> None:
    """Checks that no vector is zero: all candidates would be equally near to it, and the first would be found."""
    zero = np.flatnonzero(~vectors.any(axis=1))
    if zero.size:
        text = texts[zero[0]][:60]
        raise XlsrError(f"The vector of {text!r} is zero and has no direction ({zero.size} such texts). Remove it.")


def right_both_ways(source_vectors: np.ndarray, target_vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether each row's nearest neighbour is the same row of the other side, by unit vectors `(n, width)`.

    Examples:
        >>> source = np.array([[1.0, 0.0], [0.8, 0.6]])
        >>> forward, backward = right_both_ways(source, np.array([[0.96, 0.28], [0.0, 1.0]]))
        >>> forward.tolist(), backward.tolist()
        ([True, False], [True, True])
    """
    own = np.arange(len(source_vectors))
    forward, backward = nearest_row(source_vectors, target_vectors), nearest_row(target_vectors, source_vectors)
    return forward == own, backward == own


def nearest_row(queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """The row of each query's nearest candidate, `(n,)`; ties go to the lowest row."""
    from hf_xlsr.mining.search.neighbours import nearest_neighbours

    return nearest_neighbours(queries, candidates)[1][:, 0]


PROTOCOL = pair_protocol("tatoeba", "accuracy of the nearest sentence by cosine, both ways", tatoeba)
