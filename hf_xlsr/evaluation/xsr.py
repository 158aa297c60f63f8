"""Protocol `xsr`: cross-lingual sentence retrieval, translations among a pool of distractors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hf_xlsr.errors import XlsrError
from hf_xlsr.evaluation.encoding import Encoder, embed
from hf_xlsr.evaluation.report import metric_prefix
from hf_xlsr.mining.neighbours import nearest_neighbours

RANKS = (1, 5, 10)


def xsr(
    encoder: Encoder,
    queries: Sequence[str],
    golds: Sequence[str],
    pool: Sequence[str],
    *,
    name: str,
    languages: tuple[str, str] = ("en", "fr"),
    split: str = "test",
    prompt: str = "",
    batch_size: int = 64,
    tasks: tuple[str | None, str | None] = (None, None),
    show_progress_bar: bool = False,
) -> dict[str, float]:
    """Share of queries whose translation is among the 1, 5 and 10 nearest sentences of a pool.

    The candidates are the distinct sentences of the pool and of the golds, in the order they are first seen. The
    translation is found by its exact text, so a sentence that occurs twice is one candidate. Ties go to the candidate
    seen first.

    Args:
        encoder: Anything with a sentence-transformers style `encode`.
        queries: Sentences of the first language.
        golds: Their translations, in the same order.
        pool: Sentences of the second language; they may include golds.
        name: The dataset.
        languages: Codes of the languages of queries and pool.
        split: The part of the dataset.
        prompt: Put before every text.
        batch_size: Texts encoded at a time.
        tasks: Routes of the queries and of the pool, for a model with an encoder for each language.
        show_progress_bar: Show one while encoding.

    Returns:
        `precision@1`, `precision@5`, `precision@10`, `pool_size` (number of candidates) and `queries`, under
        `{name}-xsr/en-fr/test/`.

    Raises:
        XlsrError: queries and golds differ in number, or there are none.
    """
    if len(queries) != len(golds):
        raise XlsrError(f"there are {len(queries)} queries and {len(golds)} golds; give one gold for each query.")
    prefix = metric_prefix(name, "xsr", "-".join(languages), split)
    position: dict[str, int] = {}
    for text in (*pool, *golds):
        position.setdefault(text, len(position))
    query_vectors, candidate_vectors = (
        embed(encoder, texts, prompt=prompt, batch_size=batch_size, task=task, show_progress_bar=show_progress_bar)
        for texts, task in zip((queries, list(position)), tasks, strict=True)
    )
    truth = np.array([position[text] for text in golds])
    hits = nearest_neighbours(query_vectors, candidate_vectors, max(RANKS))[1] == truth[:, None]
    metrics: dict[str, float] = {f"{prefix}/precision@{k}": float(hits[:, :k].any(axis=1).mean()) for k in RANKS}
    return {**metrics, f"{prefix}/pool_size": len(position), f"{prefix}/queries": len(queries)}


def xsr_both_directions(
    encoder: Encoder,
    sources: Sequence[str],
    targets: Sequence[str],
    source_pool: Sequence[str],
    target_pool: Sequence[str],
    *,
    name: str,
    languages: tuple[str, str] = ("en", "fr"),
    split: str = "test",
    prompt: str = "",
    batch_size: int = 64,
    tasks: tuple[str | None, str | None] = (None, None),
    show_progress_bar: bool = False,
) -> dict[str, float]:
    """`xsr` from sources to targets and from targets to sources, each among the pool of its own target language.

    Args:
        encoder: Anything with a sentence-transformers style `encode`.
        sources: Sentences of the first language.
        targets: Their translations, in the same order.
        source_pool: Distractors of the first language.
        target_pool: Distractors of the second language.
        name: The dataset.
        languages: Codes of the two languages.
        split: The part of the dataset.
        prompt: Put before every text.
        batch_size: Texts encoded at a time.
        tasks: Routes of the first and of the second language.
        show_progress_bar: Show one while encoding.

    Returns:
        The metrics of `xsr` under `{name}-xsr/en-fr/test/` and `{name}-xsr/fr-en/test/`.

    Raises:
        XlsrError: as `xsr` does.
    """

    def one_way(
        queries: Sequence[str],
        golds: Sequence[str],
        pool: Sequence[str],
        ways: tuple[str, str],
        routes: tuple[str | None, str | None],
    ) -> dict[str, float]:
        return xsr(
            encoder,
            queries,
            golds,
            pool,
            name=name,
            languages=ways,
            split=split,
            prompt=prompt,
            batch_size=batch_size,
            tasks=routes,
            show_progress_bar=show_progress_bar,
        )

    forward = one_way(sources, targets, target_pool, languages, tasks)
    return forward | one_way(targets, sources, source_pool, (languages[1], languages[0]), (tasks[1], tasks[0]))
