"""Protocol `xsr`: cross-lingual sentence retrieval, translations among a pool of distractors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.inputs import Inputs
from hf_xlsr.evaluation.protocols.tatoeba import embed_sides
from hf_xlsr.evaluation.registry import DebiasOptions, option, pair_protocol
from hf_xlsr.evaluation.results import Results, averaged
from hf_xlsr.evaluation.rows import both_sides, by_pair_either_way, in_order

RANKS = (1, 5, 10)


@dataclass(frozen=True)
class XsrOptions(DebiasOptions):
    pool: tuple[str, ...] = option((), "further pairs, or lines of targets, as additional candidates", data=True)


def xsr(
    encoder: Encoder,
    queries: Sequence[str],
    golds: Sequence[str],
    pool: Sequence[str],
    *,
    name: str,
    languages: tuple[str, str] = ("en", "fr"),
    split: str = "test",
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """Share of queries whose translation is among the 1, 5 and 10 nearest sentences of a pool.

    The candidates are the distinct sentences of the second language in `pool` and `golds`, the translations of the
    queries, in the order they are first seen; ties go to the one seen first. The translation is found by its exact text,
    so a sentence that occurs twice is one candidate. Gives `precision@1`, `precision@5`, `precision@10`, `pool_size`
    (number of candidates) and `queries`, under `{name}-xsr/en-fr/test/`.
    """
    from hf_xlsr.mining.search.neighbours import nearest_neighbours

    position = {text: place for place, text in enumerate(dict.fromkeys((*pool, *golds)))}
    vectors = embed_sides(encoder, (queries, list(position)), languages, **encoding)
    truth = np.array([position[text] for text in golds])
    hits = nearest_neighbours(*vectors, max(RANKS))[1] == truth[:, None]
    outcomes = {f"precision@{k}": hits[:, :k].any(axis=1) for k in RANKS}
    counts = {"pool_size": len(position), "queries": len(queries)}
    return averaged(name, "xsr", languages, split, outcomes, counts)


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
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """`xsr` from sources to targets and from targets to sources, each among the pool of its own target language."""
    common: dict[str, Any] = {"name": name, "split": split, **encoding}
    forward = xsr(encoder, sources, targets, target_pool, languages=languages, **common)
    return forward | xsr(encoder, targets, sources, source_pool, languages=languages[::-1], **common)


def _run(encoder: Encoder, inputs: Inputs, options: XsrOptions) -> Results:
    """Each language pair among its own sentences and those of the pool in its languages, in either order."""
    results = Results()
    for languages, rows in by_pair_either_way(inputs.only).items():
        pool = in_order(inputs.pool, languages)
        # A pool of lines has targets only.
        pools = [[row[side] for row in (*rows, *pool) if side in row] for side in ("source", "target")]
        results |= xsr_both_directions(encoder, *both_sides(rows), *pools, languages=languages, **inputs.common)
    return results


PROTOCOLS = (pair_protocol("xsr", "precision at 1, 5 and 10 among a pool, both ways", xsr, XsrOptions, run=_run),)
