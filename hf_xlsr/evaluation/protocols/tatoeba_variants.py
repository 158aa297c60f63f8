"""Protocols `tatoeba-laser`, `tatoeba-xtreme` and `tatoeba-mteb`: the same retrieval, counted as others count it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.metrics import accuracy_score, precision_recall_fscore_support
from typing_extensions import Unpack

from hf_xlsr.data.languages import language_code
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.protocols.tatoeba import encode_pairs, right_both_ways
from hf_xlsr.evaluation.report import metric_prefix
from hf_xlsr.mining.search.neighbours import nearest_neighbours
from hf_xlsr.utils.errors import XlsrError


def tatoeba_laser(
    encoder: Encoder,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    languages: tuple[str, str],
    name: str = "tatoeba",
    split: str = "test",
    **encoding: Unpack[EncodingOptions],
) -> dict[str, float]:
    """LASER's error rate: share of sentences whose nearest neighbour by L2 on unit vectors is not their own row.

    On unit vectors the order by L2 is the order by cosine, so each rate is one minus the accuracy that `tatoeba`
    gives. As in LASER's script with its default, sentences are compared by number, not by text.

    Args:
        encoder: Anything with a sentence-transformers style `encode`.
        sources: Sentences of the first language.
        targets: Their translations, in the same order.
        languages: Codes of the two languages.
        name: The dataset.
        split: The part of it.
        encoding: See `EncodingOptions`.

    Returns:
        `source_to_target_error`, `target_to_source_error`, `error` (their mean) and `pairs`, under
        `{name}-tatoeba-laser/en-fr/test/`.

    Raises:
        XlsrError: the sides differ in length, there is no pair, or a vector is zero.
    """
    prefix = metric_prefix(name, "tatoeba-laser", "-".join(languages), split)
    vectors = encode_pairs(encoder, sources, targets, languages, **encoding)
    forward, backward = (float((~right).mean()) for right in right_both_ways(*vectors))
    return {
        f"{prefix}/source_to_target_error": forward,
        f"{prefix}/target_to_source_error": backward,
        f"{prefix}/error": (forward + backward) / 2,
        f"{prefix}/pairs": len(sources),
    }


def tatoeba_xtreme(
    encoder: Encoder,
    english: Sequence[str],
    foreign: Sequence[str],
    *,
    languages: tuple[str, str],
    name: str = "tatoeba",
    split: str = "test",
    **encoding: Unpack[EncodingOptions],
) -> dict[str, float]:
    """XTREME's accuracy: English queries among the foreign sentences, one way only.

    It is the `source_to_target_accuracy` that `tatoeba` gives with English as source. XTREME takes its vectors from
    a middle layer (7 of mBERT, 13 of XLM-R large), which is the encoder's affair here.

    Args:
        encoder: Anything with a sentence-transformers style `encode`.
        english: English sentences.
        foreign: Their translations, in the same order.
        languages: Codes of the two languages, English first.
        name: The dataset.
        split: The part of it.
        encoding: See `EncodingOptions`.

    Returns:
        `accuracy` and `pairs` under `{name}-tatoeba-xtreme/en-fr/test/`.

    Raises:
        XlsrError: the first language is not English, the sides differ in length, there is no pair, or a vector is zero.
    """
    if language_code(languages[0]) != "en":
        raise XlsrError(
            f"languages is {','.join(languages)}; tatoeba-xtreme asks in English, so give English first, e.g. en,fr."
        )
    prefix = metric_prefix(name, "tatoeba-xtreme", "-".join(languages), split)
    nearest = _nearest(*encode_pairs(encoder, english, foreign, languages, **encoding))
    accuracy = float((nearest == np.arange(len(english))).mean())
    return {f"{prefix}/accuracy": accuracy, f"{prefix}/pairs": len(english)}


def tatoeba_mteb(
    encoder: Encoder,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    languages: tuple[str, str],
    name: str = "tatoeba",
    split: str = "test",
    **encoding: Unpack[EncodingOptions],
) -> dict[str, float]:
    """mteb's score of bitext tasks: each target row is a class, each source predicts one, F1 is weighted over classes.

    From the first language to the second only, by cosine. A row that several sources choose has a low precision, so F1
    lies below the accuracy wherever sources are wrong together.

    Args:
        encoder: Anything with a sentence-transformers style `encode`.
        sources: Sentences of the first language.
        targets: Their translations, in the same order.
        languages: Codes of the two languages.
        name: The dataset.
        split: The part of it.
        encoding: See `EncodingOptions`.

    Returns:
        `f1` (mteb's main score), `precision`, `recall`, `accuracy` and `pairs` under
        `{name}-tatoeba-mteb/en-fr/test/`. The recall equals the accuracy, as each class has one row.

    Raises:
        XlsrError: the sides differ in length, there is no pair, or a vector is zero.

    Relations:
        mteb's `AbsTaskBitextMining` on the same sentences. Equal targets are separate candidates in both. A tie goes
        to the lowest row; mteb leaves it to `torch.topk`, which takes the lowest too from 64 candidates on and any of
        the tied ones below. mteb compares with the model's own similarity where it has one; here it is the cosine.
    """
    prefix = metric_prefix(name, "tatoeba-mteb", "-".join(languages), split)
    predictions = _nearest(*encode_pairs(encoder, sources, targets, languages, **encoding))
    labels = np.arange(len(predictions))
    scores = precision_recall_fscore_support(labels, predictions, average="weighted", zero_division=0)
    return {
        f"{prefix}/f1": float(scores[2]),
        f"{prefix}/precision": float(scores[0]),
        f"{prefix}/recall": float(scores[1]),
        f"{prefix}/accuracy": float(accuracy_score(labels, predictions)),
        f"{prefix}/pairs": len(sources),
    }


def _nearest(queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """The row of each query's nearest candidate, `(n,)`."""
    return nearest_neighbours(queries, candidates)[1][:, 0]
