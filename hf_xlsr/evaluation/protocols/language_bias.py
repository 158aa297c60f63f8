"""Protocol `language-bias`: how often the nearest of parallel sentences are in the query's own language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, unit_length
from hf_xlsr.evaluation.parallel_texts import encode_parallel, parallel_texts
from hf_xlsr.evaluation.protocol import DebiasOptions, Inputs, option
from hf_xlsr.evaluation.protocol_kinds import row_protocol
from hf_xlsr.evaluation.results import Results, mean_over_languages, measured
from hf_xlsr.utils.errors import XlsrError

if TYPE_CHECKING:
    from hf_xlsr.encoders.debias import Debias

SHARE = "share_"  # prefix of the metrics that are a histogram


@dataclass(frozen=True)
class LanguageBiasOptions(DebiasOptions):
    k: int | None = option(None, "size of the neighbourhoods")


def language_bias(
    encoder: Encoder,
    texts: Mapping[str, Sequence[str]],
    *,
    name: str,
    split: str = "test",
    k: int | None = None,
    debias: Debias | Literal["self"] | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """Shares of each language among the `k` sentences nearest to each query, by cosine (section 5.2, figure 2).

    `texts` are sentences by language; row `i` of all languages says the same thing. Every sentence is a query. Its
    candidates are the sentences of all `L` languages except those of its own row, so that a neutral encoder gives each
    language the share `1 / L`, and

        `bias = L * (share of the query's own language)`

    is 1 for a neutral encoder, be it random or perfect, `L` for one that stays in the query's language, and below 1 for
    one that avoids it. `with_translations_bias` has the translations among the candidates, so that an encoder that finds
    them first is below 1: the share over that of the pool without the query, `(n - 1) / (L n - 1)` for `n` rows.

    The paper gives neither `k` nor the pool. Here `k` is by default the number of languages. `debias` also measures after
    removing each language's bias: a fitted one, or, with `self`, one component fitted on the same sentences, as the
    paper does.

    Returns:
        For each language of queries, under `{name}-language-bias/fr/test/`: `bias`, `with_translations_bias`,
        `share_en`, `share_fr`, ... (the histogram) and `queries`; then the means over languages under `mean-of-5`.
        Another `k` is part of the protocol's name (`language-bias-k10`), and so is what was removed
        (`language-bias-pcr1`, or `language-bias-pcr1-self` where it was fitted on the same sentences).

    Examples:
        >>> class Lengths:
        ...     def encode(self, texts, **kwargs):
        ...         return np.array([[len(text), 1.0, text.count("e")] for text in texts])
        >>> texts = {"en": ["one", "eleven", "hundred"], "fr": ["un", "onze", "cent"]}
        >>> metrics = language_bias(Lengths(), texts, name="numbers")
        >>> round(metrics["numbers-language-bias/en/test/bias"], 2)
        0.67
    """
    languages, count = list(texts), len(next(iter(texts.values()), ()))
    wanted, most = len(languages) if k is None else k, len(languages) * (count - 1)
    if languages and not 1 <= wanted <= most:
        raise XlsrError(f"`k` must be 1 to {most}, the number of candidates, got {wanted}.")
    protocol = "language-bias" + ("" if wanted == len(languages) else f"-k{k}")
    results = Results()
    for variant, vectors in encode_parallel(encoder, texts, debias, **encoding).items():
        results |= _shares(vectors, wanted, name, f"{protocol}{variant}", split)
    return mean_over_languages(results)


def _shares(vectors: Mapping[str, np.ndarray], k: int, name: str, protocol: str, split: str) -> Results:
    from hf_xlsr.mining.search.neighbours import nearest_neighbours

    pool = unit_length(np.concatenate(list(vectors.values())))
    languages, total = list(vectors), len(pool)
    count = total // len(languages)
    rows, language_of = np.arange(total) % count, np.arange(total) // count
    # The query and its translations may all be nearer than any other sentence.
    found = nearest_neighbours(pool, pool, k + len(languages))[1]
    others = language_of[_first(found, rows[found] != rows[:, None], k)]
    with_translations = language_of[_first(found, found != np.arange(total)[:, None], k)]
    unbiased = (count - 1) / (total - 1)
    results = Results()
    for number, language in enumerate(languages):
        queries = language_of == number
        shares = np.bincount(others[queries].ravel(), minlength=len(languages)) / (count * k)
        values = {
            "bias": float(shares[number] * len(languages)),
            "with_translations_bias": float((with_translations[queries] == number).mean() / unbiased),
            **{f"{SHARE}{other}": float(share) for other, share in zip(languages, shares, strict=True)},
            "queries": count,
        }
        own = (others[queries] == number).mean(axis=1) * len(languages)
        of_translations = (with_translations[queries] == number).mean(axis=1) / unbiased
        outcomes = {"bias": own, "with_translations_bias": of_translations}
        results |= measured(name, protocol, language, split, values, outcomes)
    return results


def _first(found: np.ndarray, kept: np.ndarray, k: int) -> np.ndarray:
    return np.take_along_axis(found, np.argsort(~kept, axis=1, kind="stable")[:, :k], axis=1)


def _run_bias(encoder: Encoder, inputs: Inputs, options: LanguageBiasOptions) -> Results:
    texts = parallel_texts(inputs)
    return language_bias(encoder, texts, debias=inputs.debias, **inputs.common, **options.arguments())


PROTOCOLS = (
    row_protocol(
        "language-bias",
        "share of the query's own language among the nearest of parallel sentences, over the unbiased share",
        ("text",),
        _run_bias,
        LanguageBiasOptions,
    ),
)
