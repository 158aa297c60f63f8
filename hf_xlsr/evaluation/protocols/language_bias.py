"""Protocol `language-bias`: how often the nearest of parallel sentences are in the query's own language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, unit_length
from hf_xlsr.evaluation.outcomes import Outcomes
from hf_xlsr.evaluation.parallel_texts import encode_parallel, parallel_texts, read_parallel, texts_by_language
from hf_xlsr.evaluation.protocol import DebiasOptions, option
from hf_xlsr.evaluation.protocol_kinds import row_protocol
from hf_xlsr.evaluation.reading import RowInputs
from hf_xlsr.evaluation.results import Results, language_key, mean_over_languages, measured
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
    texts = texts_by_language(texts)
    languages = list(texts)
    count = len(next(iter(texts.values()), ()))
    most = len(languages) * (count - 1)
    protocol = "language-bias"
    if k is None:
        k = len(languages)
    if k != len(languages):
        protocol += f"-k{k}"
    if languages and not 1 <= k <= most:
        raise XlsrError(f"`k` must be 1 to {most}, the number of candidates, got {k}.")

    results = Results()
    for variant, vectors in encode_parallel(encoder, texts, debias, **encoding).items():
        results |= _bias_metrics(vectors, k, name, f"{protocol}{variant}", split)
    return mean_over_languages(results)


def _bias_metrics(vectors: Mapping[str, np.ndarray], k: int, name: str, protocol: str, split: str) -> Results:
    """Metrics of each language of queries, from the vectors of parallel texts by language."""
    from hf_xlsr.mining.search.neighbours import nearest_neighbours

    pool = unit_length(np.concatenate(list(vectors.values())))
    total = len(pool)
    count = total // len(vectors)
    row_of = np.arange(total) % count
    language_of = np.arange(total) // count

    # The query and its translations may all be nearer than any other sentence.
    nearest = nearest_neighbours(pool, pool, k + len(vectors))[1]
    is_other_row = row_of[nearest] != row_of[:, None]
    is_other_sentence = nearest != np.arange(total)[:, None]
    neighbours = language_of[_first(nearest, is_other_row, k)]
    with_translations = language_of[_first(nearest, is_other_sentence, k)]
    unbiased = (count - 1) / (total - 1)

    results = Results()
    for number, language in enumerate(vectors):
        is_query = language_of == number
        retrieved = neighbours[is_query]
        in_language = retrieved == number
        in_language_with_translations = with_translations[is_query] == number
        shares = np.bincount(retrieved.ravel(), minlength=len(vectors)) / (count * k)

        values = {
            "bias": shares[number] * len(vectors),
            "with_translations_bias": in_language_with_translations.mean() / unbiased,
        }
        for retrieved_language, share in zip(vectors, shares, strict=True):
            values[f"{SHARE}{language_key(retrieved_language)}"] = share
        values["queries"] = count
        biases = in_language.mean(axis=1) * len(vectors)
        biases_with_translations = in_language_with_translations.mean(axis=1) / unbiased
        outcomes = {
            "bias": Outcomes("unbounded_mean", (biases,)),
            "with_translations_bias": Outcomes("unbounded_mean", (biases_with_translations,)),
        }
        results |= measured(
            name,
            protocol,
            language,
            split,
            values,
            outcomes,
            candidates=total - len(vectors),
        )

    return results


def _first(neighbours: np.ndarray, valid: np.ndarray, k: int) -> np.ndarray:
    """The first `k` valid neighbours of each row."""
    order = np.argsort(~valid, axis=1, kind="stable")
    return np.take_along_axis(neighbours, order[:, :k], axis=1)


def _run(encoder: Encoder, inputs: RowInputs, options: LanguageBiasOptions) -> Results:
    texts = parallel_texts(inputs)
    return language_bias(
        encoder,
        texts,
        debias=inputs.debias,
        **inputs.common,
        **options.arguments(),
    )


PROTOCOLS = (
    row_protocol(
        "language-bias",
        "share of the query's own language among the nearest of parallel sentences, over the unbiased share",
        ("text",),
        read_parallel,
        _run,
        LanguageBiasOptions,
        headline="bias",
        lower_is_better=True,
    ),
)
