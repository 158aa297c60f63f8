"""Protocols `language-bias` and `search`: what an encoder finds among texts in several languages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.cache import CachedEncoder
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed, unit_length
from hf_xlsr.evaluation.inputs import DataOptions, Inputs, finish_inputs, open_inputs, read_table
from hf_xlsr.evaluation.protocols.tatoeba import check_directions
from hf_xlsr.evaluation.registry import DebiasOptions, Protocol, option, row_protocol
from hf_xlsr.evaluation.results import Results, averaged, mean_over_languages, measured
from hf_xlsr.evaluation.rows import by_language, read_score
from hf_xlsr.evaluation.table import TableReader
from hf_xlsr.utils.errors import XlsrError

if TYPE_CHECKING:
    from hf_xlsr.encoders.debias import Debias

SELF: Literal["self"] = "self"
SHARE = "share_"  # prefix of the metrics that are a histogram
RANKS = (1, 10)
DEPTH = 10  # of nDCG
QUERIES = 256  # ranked at a time
TIE = 1e-9  # products of equal vectors may differ in their last bits


@dataclass(frozen=True)
class LanguageBiasOptions(DebiasOptions):
    k: int | None = option(None, "size of the neighbourhoods")


@dataclass(frozen=True)
class SearchOptions(DebiasOptions):
    documents: tuple[str, ...] = option((), "documents of a retrieval data set: document_id, text [lang]", data=True)
    relevance: str | None = option(None, "relevant documents: query_id, document_id [score]", data=True)


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


def encode_parallel(
    encoder: Encoder,
    texts: Mapping[str, Sequence[str]],
    debias: Debias | Literal["self"] | None,
    *,
    role: str | None = None,
    **encoding: Any,
) -> dict[str, dict[str, np.ndarray]]:
    """Vectors of parallel texts by language, and without language bias; each by its part of the protocol's name."""
    counts = {language: len(rows) for language, rows in texts.items()}
    if len(counts) < 2 or len(set(counts.values())) > 1:
        raise XlsrError(f"`texts` must have the same number of sentences in two or more languages, got {counts}.")
    vectors = {
        language: embed(encoder, rows, language=language, role=role, normalize=False, **encoding)
        for language, rows in texts.items()
    }
    variants = {"": vectors}
    if debias is not None:
        chosen = _fit_on(vectors, texts) if debias == SELF else debias
        without = {language: chosen.apply(matrix, language) for language, matrix in vectors.items()}
        variants[f"-{chosen.variant}" + ("-self" if debias == SELF else "")] = without
    for each in variants.values():
        for language, matrix in each.items():
            check_directions(matrix, texts[language])
    return variants


def _fit_on(vectors: Mapping[str, np.ndarray], texts: Mapping[str, Sequence[str]]) -> Debias:
    """One component of each language; a sentence that occurs twice counts once."""
    from hf_xlsr.encoders.debias import DebiasFitter

    fitter = DebiasFitter()
    for language, matrix in vectors.items():
        fitter.partial_fit(language, matrix[list({text: row for row, text in enumerate(texts[language])}.values())])
    return fitter.finish()


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


def search(
    encoder: Encoder,
    texts: Mapping[str, Sequence[str]],
    *,
    name: str,
    split: str = "test",
    debias: Debias | Literal["self"] | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """Search in a pool of all languages, by cosine.

    `texts` and `debias` are those of `language_bias`. Every sentence is a query, the pool all other sentences, each with
    the prompt of its role. For each
    pair of languages the one translation is ranked among the documents that are no translation, below those of equal
    similarity: an encoder that gives all texts one vector finds nothing.

    Returns:
        `mrr` (mean of 1 / rank), `ndcg@10`, `recall@1`, `recall@10`, `queries` and `own_language_error`, the share of
        queries for which a wrong document of the query's own language ranks above the translation, under
        `{name}-search/en-de/test/` (after a removal `search-pcr1` and the like); then the means over languages.

    Examples:
        >>> class Lengths:
        ...     def encode(self, texts, **kwargs):
        ...         return np.array([[len(text), 1.0, text.count("e")] for text in texts])
        >>> texts = {"en": ["one", "eleven", "hundred"], "fr": ["un", "onze", "cent"]}
        >>> metrics = search(Lengths(), texts, name="numbers")
        >>> round(metrics["numbers-search/en-fr/test/mrr"], 2)
        0.34
    """
    cached = CachedEncoder(encoder)  # texts are encoded once if queries and documents have the same prompt
    queries, documents = (
        encode_parallel(cached, texts, debias, role=role, **encoding) for role in ("query", "document")
    )
    results = Results()
    for variant, vectors in queries.items():
        results |= _search_metrics(vectors, documents[variant], name, f"search{variant}", split)
    return mean_over_languages(results)


def _search_metrics(
    queries: Mapping[str, np.ndarray], documents: Mapping[str, np.ndarray], name: str, protocol: str, split: str
) -> Results:
    """Metrics of searches with the vectors of queries among those of documents, both by language."""
    asked, pool = (unit_length(np.stack(list(side.values())).astype(np.float64)) for side in (queries, documents))
    results = Results()
    for number, language in enumerate(queries):
        ranks, above = _ranked(asked[number], pool, number)
        for other, rank, wrong in zip(documents, ranks.T, above.T, strict=True):
            if other == language:
                continue
            outcomes = {"mrr": 1 / rank, "ndcg@10": np.where(rank <= DEPTH, 1 / np.log2(1 + rank), 0.0)}
            outcomes |= {f"recall@{k}": rank <= k for k in RANKS} | {"own_language_error": wrong}
            results |= averaged(name, protocol, (language, other), split, outcomes, {"queries": len(rank)})
    return results


def _ranked(queries: np.ndarray, pool: np.ndarray, number: int) -> tuple[np.ndarray, ...]:
    """The rank of each translation of the queries in a language, and whether a wrong document of it ranks higher.

    `queries` are `(rows, width)`, in the language of this number; `pool` has the vectors of all documents, `(languages,
    rows, width)`. Both results are `(rows, languages)`.
    """
    languages, count, width = pool.shape
    blocks = []
    for start in range(0, count, QUERIES):
        rows = np.arange(start, min(start + QUERIES, count))
        scores = (queries[rows] @ pool.reshape(-1, width).T).reshape(len(rows), languages, count)
        line = np.arange(len(rows))
        limits = scores[line, :, rows] - TIE
        scores[line, :, rows] = -np.inf
        ranks = [1 + (scores > limit[:, None, None]).sum(axis=(1, 2)) for limit in limits.T]
        blocks.append((np.stack(ranks, axis=1), scores[:, number].max(axis=1)[:, None] > limits))
    return tuple(map(np.concatenate, zip(*blocks, strict=True)))


def search_documents(
    encoder: Encoder,
    queries: Mapping[str, str],
    documents: Mapping[str, str],
    relevance: Mapping[str, Mapping[str, float]],
    *,
    name: str,
    split: str = "test",
    languages: str | tuple[str, str] = "en",
    query_languages: Mapping[str, str] | None = None,
    document_languages: Mapping[str, str] | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """Search in the documents of a retrieval data set, by cosine.

    The metrics are those of mteb and trec_eval: nDCG with the relevance as gain, equal similarities by falling id.

    Args:
        queries: Id -> query.
        documents: Id -> document.
        relevance: Query -> document -> relevance above 0. Queries without a relevant document are left out.
        languages: Name of the results.
        query_languages: Id -> language, for a model with a route or prompt for each. Likewise `document_languages`.

    Returns:
        `mrr`, `ndcg@10`, `recall@1`, `recall@10`, `queries` and `documents`, under `{name}-search/en/test/`.
    """
    relevant = {query: {one: gain for one, gain in relevance.get(query, {}).items() if gain > 0} for query in queries}
    asked = [query for query in queries if relevant[query]]
    lost = sorted(set().union(*relevant.values()) - documents.keys())
    if not asked or lost:
        problem = f"document '{lost[0]}' is missing" if lost else "no query has a relevant document"
        raise XlsrError(f"{name}: {problem}; check the columns `query_id` and `document_id`.")
    ids = sorted(documents, reverse=True)
    pool = _encode(encoder, ids, documents, document_languages or {}, "document", encoding)
    vectors = _encode(encoder, asked, queries, query_languages or {}, "query", encoding)
    place = {one: number for number, one in enumerate(ids)}
    values: dict[str, list[float]] = {"mrr": [], "ndcg@10": [], **{f"recall@{k}": [] for k in RANKS}}
    for start in range(0, len(asked), QUERIES):
        for query, scores in zip(asked[start:], vectors[start : start + QUERIES] @ pool.T, strict=False):
            gain = {place[one]: value for one, value in relevant[query].items()}
            mine = sorted(gain)
            ranks = np.array([1 + (scores > scores[n]).sum() + (scores[:n] == scores[n]).sum() for n in mine])
            ideal = sorted(gain.values(), reverse=True)[:DEPTH]
            best = sum(value / np.log2(2 + number) for number, value in enumerate(ideal))
            gains = [gain[n] / np.log2(1 + rank) for n, rank in zip(mine, ranks, strict=True) if rank <= DEPTH]
            values["mrr"].append(1 / ranks.min())
            values["ndcg@10"].append(sum(gains) / best)
            for k in RANKS:
                values[f"recall@{k}"].append(float((ranks <= k).mean()))
    outcomes = {metric: np.array(each) for metric, each in values.items()}
    return averaged(name, "search", languages, split, outcomes, {"queries": len(asked), "documents": len(documents)})


def _encode(
    encoder: Encoder,
    ids: list[str],
    texts: Mapping[str, str],
    languages: Mapping[str, str],
    role: str,
    encoding: EncodingOptions,
) -> np.ndarray:
    """Unit vectors of texts, encoded language by language."""
    rows: dict[str | None, list[str]] = {}
    for one in ids:
        rows.setdefault(languages.get(one), []).append(one)
    vectors: dict[str, np.ndarray] = {}
    for language, group in rows.items():
        found = embed(encoder, [texts[one] for one in group], language=language, role=role, **encoding)
        vectors.update(zip(group, found, strict=True))
    return np.stack([vectors[one] for one in ids])


def parallel_texts(inputs: Inputs) -> dict[str, list[str]]:
    """The sentences of each language, row by row; refuses data with skipped rows, whose languages are not parallel."""
    if inputs.skipped:
        raise XlsrError(
            f"{inputs.name} has {sum(inputs.skipped.values())} invalid rows; remove them in all languages."
        )
    return {language: [row["text"] for row in rows] for language, rows in by_language(inputs.only).items()}


def _run_bias(encoder: Encoder, inputs: Inputs, options: LanguageBiasOptions) -> Results:
    texts = parallel_texts(inputs)
    return language_bias(encoder, texts, debias=inputs.debias, **inputs.common, **options.arguments())


def _read(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> Inputs:
    """A wide table of parallel texts, or queries, documents and relevance."""
    documents, relevance = options.get("documents"), options.get("relevance")
    if not documents and not relevance:
        return read_table(protocol, data, options)
    if not documents or not relevance:
        raise XlsrError("--documents and --relevance belong together.")
    reader, inputs = open_inputs(protocol, data)
    asked, searched = (_with_columns(reader, id_, "text") for id_ in ("query_id", "document_id"))
    inputs.rows = {inputs.name: asked.open(data.files, data.languages[:1]).split(data.split)}
    # One language is that of the queries; documents that have languages of their own stay whole.
    inputs.pool = searched.open(documents, data.languages[-1:]).split(None, select=len(data.languages) > 1)
    judged = _with_columns(reader, "query_id", "document_id", optional=("score", "split"))
    inputs.relevance = judged.open((relevance,), (inputs.only[0]["lang"],)).split(data.split)
    return finish_inputs(inputs, data, reader)


def _with_columns(reader: TableReader, *required: str, optional: tuple[str, ...] = ("lang", "split")) -> TableReader:
    columns = {ours: theirs for ours, theirs in reader.columns.items() if ours in (*required, *optional)}
    return replace(reader, required=required, optional=optional, columns=columns)


def _run_search(encoder: Encoder, inputs: Inputs, options: SearchOptions) -> Results:
    if not inputs.relevance:
        return search(encoder, parallel_texts(inputs), debias=inputs.debias, **inputs.common)
    if inputs.debias is not None:
        raise XlsrError("--debias needs parallel texts; it is not supported with --documents.")
    relevance: dict[str, dict[str, float]] = {}
    for row in inputs.relevance:
        query, document = str(row["query_id"]), str(row["document_id"])
        gain = read_score(row.get("score"), f"query {query} and document {document} in --relevance", 1)
        relevance.setdefault(query, {})[document] = gain
    documents, where = ({str(row["document_id"]): row[column] for row in inputs.pool} for column in ("text", "lang"))
    others = set(where.values())
    results = Results()
    for language, rows in by_language(inputs.only).items():
        queries = {str(row["query_id"]): row["text"] for row in rows}
        pair = language if len(others) > 1 or language in others else (language, *others)
        results |= search_documents(
            encoder,
            queries,
            documents,
            relevance,
            languages=pair,
            query_languages=dict.fromkeys(queries, language),
            document_languages=where,
            **inputs.common,
        )
    return results


PROTOCOLS = (
    row_protocol(
        "language-bias",
        "share of the query's own language among the nearest of parallel sentences, over the unbiased share",
        ("text",),
        _run_bias,
        LanguageBiasOptions,
    ),
    row_protocol(
        "search",
        "search in documents of all languages: MRR, nDCG, recall, and wrong documents of the query's own language",
        ("text",),
        _run_search,
        SearchOptions,
        read=_read,
        optional=("query_id", "document_id", "score"),
    ),
)
