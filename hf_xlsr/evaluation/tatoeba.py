"""Protocol `tatoeba`: does the nearest sentence of the other language happen to be the translation?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.errors import XlsrError
from hf_xlsr.evaluation.encoding import Encoder, EncodingOptions, embed
from hf_xlsr.evaluation.report import metric_prefix
from hf_xlsr.mining.neighbours import nearest_neighbours


def tatoeba(
    encoder: Encoder,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    languages: tuple[str, str] = ("en", "fr"),
    name: str = "tatoeba",
    split: str = "test",
    **encoding: Unpack[EncodingOptions],
) -> dict[str, float]:
    """Retrieval accuracy over parallel sentences, both ways, by plain cosine among all of them.

    Sentence `i` is right when its nearest neighbour is number `i` of the other side. Sentences are compared by number,
    not by text: of two equal targets the first is found, so the second one's source counts as wrong.

    Args:
        encoder: Anything with a sentence-transformers style `encode`.
        sources: Sentences of the first language.
        targets: Their translations, in the same order.
        languages: Codes of the two languages.
        name: The dataset.
        split: The part of it.
        encoding: See `EncodingOptions`.

    Returns:
        `source_to_target_accuracy`, `target_to_source_accuracy`, `accuracy` (their mean) and `pairs`, under
        `tatoeba/en-fr/test/`; another dataset is named in front, `tico19-tatoeba/en-fr/test/`.

    Raises:
        XlsrError: the sides differ in length, or there is no pair.

    Relations:
        sentence-transformers' `TranslationEvaluator` gives the same accuracies when no sentence occurs twice; it
        compares texts, so equal sentences count as right there. LASER's Tatoeba script reports `1 - accuracy`. XTREME
        reports English to foreign only.
    """
    if len(sources) != len(targets):
        raise XlsrError(
            f"there are {len(sources)} sources and {len(targets)} targets; give one target for each source."
        )
    prefix = metric_prefix(name, "tatoeba", "-".join(languages), split)
    sides = [
        embed(encoder, texts, language=language, **encoding)
        for texts, language in zip((sources, targets), languages, strict=True)
    ]
    forward, backward = (
        float((nearest_neighbours(queries, candidates)[1][:, 0] == np.arange(len(queries))).mean())
        for queries, candidates in (sides, sides[::-1])
    )
    return {
        f"{prefix}/source_to_target_accuracy": forward,
        f"{prefix}/target_to_source_accuracy": backward,
        f"{prefix}/accuracy": (forward + backward) / 2,
        f"{prefix}/pairs": len(sources),
    }
