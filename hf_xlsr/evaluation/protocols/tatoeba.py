"""Protocols `tatoeba`, its variants, and `xsr`: is a sentence's nearest one, by cosine, its translation?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.data.languages import language_code
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.containers import parallel_lists, sentence_list
from hf_xlsr.evaluation.pairs import (
    PAIR_ROLES,
    Roles,
    both_ways,
    embed_sides,
    encode_pairs,
    nearest_row,
    right_both_ways,
)
from hf_xlsr.evaluation.protocol import DebiasOptions, Options, option
from hf_xlsr.evaluation.protocol_kinds import pair_protocol
from hf_xlsr.evaluation.reading import PairInputs
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.evaluation.rows import both_sides, by_pair_either_way, in_order
from hf_xlsr.utils.errors import XlsrError

RANKS = (1, 5, 10)  # of `xsr`


@dataclass(frozen=True)
class XsrOptions(DebiasOptions):
    pool: tuple[str, ...] = option((), "further pairs as additional candidates", data=True, files=True)


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
        sources: Sentences of the first of the `languages`.
        targets: Their translations, in the same order.
        name: The dataset, of which `split` is a part.
        encoding: See `EncodingOptions`.

    Returns:
        `source_to_target_accuracy`, `target_to_source_accuracy`, `accuracy` (their mean) and `pairs`, under
        `tatoeba/en-fr/test/`; another dataset is a prefix, `tico19-tatoeba/en-fr/test/`. sentence-transformers'
        `TranslationEvaluator` gives the same accuracies when no sentence occurs twice; it compares texts, so equal
        sentences count as correct there.
    """
    forward, backward = right_both_ways(*encode_pairs(encoder, sources, targets, languages, **encoding))
    scores = both_ways("accuracy", forward, backward)
    return measured(name, "tatoeba", languages, split, *scores, candidates=len(forward))


def tatoeba_laser(
    encoder: Encoder,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    languages: tuple[str, str],
    name: str = "tatoeba",
    split: str = "test",
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """LASER's error rate: share of sentences whose nearest neighbour by L2 on unit vectors is not their own row.

    On unit vectors the order by L2 is the order by cosine, so each rate is one minus the accuracy of `tatoeba`, with
    the same arguments. Gives `source_to_target_error`, `target_to_source_error`, `error` (their mean) and `pairs`, under
    `{name}-tatoeba-laser/en-fr/test/`.
    """
    forward, backward = right_both_ways(*encode_pairs(encoder, sources, targets, languages, **encoding))
    scores = both_ways("error", ~forward, ~backward)
    return measured(name, "tatoeba-laser", languages, split, *scores, candidates=len(forward))


def tatoeba_mteb(
    encoder: Encoder,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    languages: tuple[str, str],
    name: str = "tatoeba",
    split: str = "test",
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """mteb's score of bitext tasks: each target row is a class, each source predicts one, F1 is weighted over classes.

    From the first language to the second only, with the arguments of `tatoeba`. A row that several sources choose has a
    low precision, so F1 is below the accuracy wherever sources share a wrong answer. A tie goes to the lowest row; mteb
    leaves it to `torch.topk`, which takes any of the tied ones below 64 candidates. Gives `f1` (mteb's main score),
    `precision`, `recall` (equal to the accuracy, as each class has one row), `accuracy` and `pairs` under
    `{name}-tatoeba-mteb/en-fr/test/`.
    """
    nearest = nearest_row(*encode_pairs(encoder, sources, targets, languages, **encoding))
    count = len(nearest)
    is_right = nearest == np.arange(count)

    # A class has one row, so that precision and F1 of a class are outcomes of its row.
    chosen = np.bincount(nearest, minlength=count)
    outcomes = {
        "precision": is_right / np.maximum(chosen, 1),
        "recall": is_right,
        "f1": 2 * is_right / (1 + chosen),
        "accuracy": is_right,
    }
    return measured(
        name,
        "tatoeba-mteb",
        languages,
        split,
        {"pairs": count},
        outcomes,
        candidates=count,
    )


def tatoeba_xtreme(
    encoder: Encoder,
    english: Sequence[str],
    foreign: Sequence[str],
    *,
    languages: tuple[str, str],
    name: str = "tatoeba",
    split: str = "test",
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """XTREME's accuracy: English queries among the foreign sentences, one way only.

    It is the `source_to_target_accuracy` of `tatoeba` with English as source. XTREME takes its vectors from a middle
    layer (7 of mBERT, 13 of XLM-R large); here the encoder decides. Gives `accuracy` and `pairs` under
    `{name}-tatoeba-xtreme/en-fr/test/`.
    """
    if language_code(languages[0]) != "en":
        raise XlsrError(
            f"tatoeba-xtreme has English queries; `languages` must start with en, got {','.join(languages)}."
        )
    nearest = nearest_row(*encode_pairs(encoder, english, foreign, languages, **encoding))
    is_right = nearest == np.arange(len(nearest))
    counts = {"pairs": len(is_right)}
    return measured(
        name,
        "tatoeba-xtreme",
        languages,
        split,
        counts,
        {"accuracy": is_right},
        candidates=len(nearest),
    )


def xsr(
    encoder: Encoder,
    queries: Sequence[str],
    golds: Sequence[str],
    pool: Sequence[str],
    *,
    name: str,
    languages: tuple[str, str] = ("en", "fr"),
    split: str = "test",
    roles: Roles = PAIR_ROLES,
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """Share of queries whose translation is among the 1, 5 and 10 nearest sentences of a pool.

    The candidates are the distinct sentences in `pool` and `golds`, the translations of the queries; ties go to the one
    seen first. The translation is found by its exact text. `roles` name the sides of queries and candidates, for prompts
    by side. Gives `precision@1`, `precision@5`, `precision@10`, `pool_size` (number of candidates) and `queries`, under
    `{name}-xsr/en-fr/test/`.
    """
    from hf_xlsr.mining.search.neighbours import nearest_neighbours

    queries, golds = parallel_lists(queries, golds, ("queries", "golds"))
    candidates = list(dict.fromkeys((*sentence_list(pool, "pool"), *golds)))
    row_of = {text: row for row, text in enumerate(candidates)}
    gold_rows = np.array([row_of[text] for text in golds])
    vectors = embed_sides(encoder, (queries, candidates), languages, roles=roles, **encoding)

    _, nearest = nearest_neighbours(*vectors, max(RANKS))
    is_gold = nearest == gold_rows[:, None]
    outcomes = {f"precision@{k}": is_gold[:, :k].any(axis=1) for k in RANKS}
    counts = {"pool_size": len(candidates), "queries": len(queries)}
    return measured(name, "xsr", languages, split, counts, outcomes, candidates=len(candidates))


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
    sources, targets = parallel_lists(sources, targets)
    search = partial(xsr, encoder, name=name, split=split, **encoding)
    forward = search(sources, targets, target_pool, languages=languages)
    backward = search(targets, sources, source_pool, languages=languages[::-1], roles=PAIR_ROLES[::-1])
    return forward | backward


def _run_xtreme(encoder: Encoder, inputs: PairInputs, options: Options) -> Results:
    """Swaps pairs so that English is first."""
    results = Results()
    for languages, rows in by_pair_either_way(inputs.rows).items():
        if language_code(languages[1]) == "en":
            languages = languages[::-1]
        sides = both_sides(in_order(rows, languages))
        results |= tatoeba_xtreme(encoder, *sides, languages=languages, **inputs.common)
    return results


def _run_xsr(encoder: Encoder, inputs: PairInputs, options: XsrOptions) -> Results:
    """Each language pair among its own sentences and those of the pool in its languages, in either order."""
    results = Results()
    for languages, rows in by_pair_either_way(inputs.rows).items():
        pools = both_sides([*rows, *in_order(inputs.pool, languages)])
        results |= xsr_both_directions(encoder, *both_sides(rows), *pools, languages=languages, **inputs.common)
    return results


PROTOCOLS = (
    pair_protocol("tatoeba", "accuracy of the nearest sentence by cosine, both ways", tatoeba, headline="accuracy"),
    pair_protocol(
        "tatoeba-laser",
        "LASER's error rate of the nearest sentence, both ways",
        tatoeba_laser,
        headline="error",
        lower_is_better=True,
    ),
    pair_protocol("tatoeba-mteb", "mteb's weighted F1, source to target", tatoeba_mteb, headline="f1"),
    pair_protocol(
        "tatoeba-xtreme",
        "XTREME's accuracy: English queries, answers in the other language",
        tatoeba_xtreme,
        run=_run_xtreme,
        headline="accuracy",
    ),
    pair_protocol(
        "xsr",
        "precision at 1, 5 and 10 among a pool, both ways",
        xsr,
        XsrOptions,
        run=_run_xsr,
        headline="precision@1",
    ),
)
