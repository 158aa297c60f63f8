"""Protocol `search`: what an encoder finds among documents in several languages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.cache import CachedEncoder
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed, unit_length
from hf_xlsr.evaluation.parallel_texts import encode_parallel, parallel_texts
from hf_xlsr.evaluation.protocol import DataOptions, DebiasOptions, Protocol, Rows, option
from hf_xlsr.evaluation.protocol_kinds import row_protocol
from hf_xlsr.evaluation.reading import RowInputs, finished_fields, narrowed, open_data, read_rows
from hf_xlsr.evaluation.results import Results, mean_over_languages, measured
from hf_xlsr.evaluation.rows import by_language, read_score
from hf_xlsr.evaluation.trec import trec_metrics
from hf_xlsr.utils.errors import XlsrError

if TYPE_CHECKING:
    from hf_xlsr.encoders.debias import Debias

RANKS = (1, 10)
DEPTH = 10  # of nDCG
QUERIES = 256  # ranked at a time
TIE = 1e-9  # products of equal vectors may differ in their last bits


@dataclass(frozen=True)
class SearchOptions(DebiasOptions):
    documents: tuple[str, ...] = option((), "documents of a retrieval data set: document_id, text [lang]", data=True)
    relevance: str | None = option(None, "relevant documents: query_id, document_id [score]", data=True)


@dataclass(kw_only=True)
class SearchInputs(RowInputs):
    """Queries, and the documents of a retrieval data set with their relevance."""

    pool: Rows
    relevance: Rows


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
    the prompt of its role. For each pair of languages the one translation is ranked among the documents that are no
    translation, below those of equal similarity: an encoder that gives all texts one vector finds nothing.

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
    queries = encode_parallel(cached, texts, debias, role="query", **encoding)
    documents = encode_parallel(cached, texts, debias, role="document", **encoding)

    results = Results()
    for variant, vectors in queries.items():
        results |= _search_metrics(vectors, documents[variant], name, f"search{variant}", split)
    return mean_over_languages(results)


def _search_metrics(
    queries: Mapping[str, np.ndarray], documents: Mapping[str, np.ndarray], name: str, protocol: str, split: str
) -> Results:
    """Metrics of searches with the vectors of queries among those of documents, both by language."""
    query_vectors = unit_length(np.array(list(queries.values()), np.float64))
    pool = unit_length(np.array(list(documents.values()), np.float64))

    results = Results()
    for number, language in enumerate(queries):
        ranks, errors = _ranked(query_vectors[number], pool, number)
        for document_language, rank, is_error in zip(documents, ranks.T, errors.T, strict=True):
            if document_language == language:
                continue
            gain = 1 / np.log2(1 + rank)
            outcomes = {"mrr": 1 / rank}
            outcomes[f"ndcg@{DEPTH}"] = np.where(rank <= DEPTH, gain, 0.0)
            for k in RANKS:
                outcomes[f"recall@{k}"] = rank <= k
            outcomes["own_language_error"] = is_error

            languages = (language, document_language)
            candidates = 1 + len(documents) * (len(rank) - 1)
            results |= measured(
                name,
                protocol,
                languages,
                split,
                {"queries": len(rank)},
                outcomes,
                candidates=candidates,
            )

    return results


def _ranked(queries: np.ndarray, pool: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The rank of each translation of the queries in a language, and whether a wrong document of it ranks higher.

    `queries` are `(rows, width)`, in the language of this number; `pool` has the vectors of all documents, `(languages,
    rows, width)`. Both results are `(rows, languages)`.
    """
    languages, count, width = pool.shape
    rank_blocks = []
    error_blocks = []
    for start in range(0, count, QUERIES):
        rows = np.arange(start, min(start + QUERIES, count))
        block_rows = np.arange(len(rows))
        products = queries[rows] @ pool.reshape(-1, width).T
        scores = products.reshape(len(rows), languages, count)

        limits = scores[block_rows, :, rows] - TIE
        scores[block_rows, :, rows] = -np.inf
        ranks = []
        for limit in limits.T:
            is_above = scores > limit[:, None, None]
            ranks.append(1 + is_above.sum(axis=(1, 2)))
        rank_blocks.append(np.stack(ranks, axis=1))
        best_errors = scores[:, number].max(axis=1)
        error_blocks.append(best_errors[:, None] > limits)

    return np.concatenate(rank_blocks), np.concatenate(error_blocks)


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
    document_ids = sorted(documents, reverse=True)
    column_of = {document: column for column, document in enumerate(document_ids)}
    gains_of: dict[str, dict[int, float]] = {}
    for query in queries:
        gains: dict[int, float] = {}
        for document, gain in relevance.get(query, {}).items():
            if gain > 0 and document not in column_of:
                raise XlsrError(f"{name} has no document '{document}', which is relevant for query '{query}'.")
            if gain > 0:
                gains[column_of[document]] = gain
        if gains:
            gains_of[query] = gains

    if not gains_of:
        raise XlsrError(
            f"{name} has no query with a relevant document; check the columns `query_id` and `document_id`."
        )

    query_ids = list(gains_of)
    pool = _encode(encoder, document_ids, documents, document_languages or {}, "document", encoding)
    vectors = _encode(encoder, query_ids, queries, query_languages or {}, "query", encoding)

    values: dict[str, list[float]] = defaultdict(list)
    for start in range(0, len(query_ids), QUERIES):
        block = slice(start, start + QUERIES)
        similarities = vectors[block] @ pool.T
        for query, scores in zip(query_ids[block], similarities, strict=True):
            for metric, value in _query_metrics(scores, gains_of[query]).items():
                values[metric].append(value)

    outcomes = {metric: np.array(of_queries) for metric, of_queries in values.items()}
    counts = {"queries": len(query_ids), "documents": len(documents)}
    return measured(name, "search", languages, split, counts, outcomes, candidates=len(documents))


def _query_metrics(scores: np.ndarray, gains: Mapping[int, float]) -> dict[str, float]:
    """Metrics of one query, from the similarity of each document and the gain of each relevant one, by its column."""
    by_trec = trec_metrics(scores, gains, depth=DEPTH, ranks=RANKS)
    if by_trec is not None:
        return by_trec

    ranks = []
    gained = 0.0
    for column in sorted(gains):
        rank = _rank(scores, column)
        ranks.append(rank)
        if rank <= DEPTH:
            gained += gains[column] / np.log2(1 + rank)

    best = 0.0
    best_gains = sorted(gains.values(), reverse=True)
    for rank, gain in enumerate(best_gains[:DEPTH], start=1):
        best += gain / np.log2(1 + rank)

    metrics = {"mrr": 1 / min(ranks), f"ndcg@{DEPTH}": gained / best}
    for k in RANKS:
        metrics[f"recall@{k}"] = float(np.less_equal(ranks, k).mean())
    return metrics


def _rank(scores: np.ndarray, column: int) -> int:
    """The rank of a document; those of equal similarity before it rank higher."""
    score = scores[column]
    above = np.count_nonzero(scores > score)
    ties = np.count_nonzero(scores[:column] == score)
    return int(1 + above + ties)


def _encode(
    encoder: Encoder,
    ids: list[str],
    texts: Mapping[str, str],
    languages: Mapping[str, str],
    role: str,
    encoding: EncodingOptions,
) -> np.ndarray:
    """Unit vectors of texts, encoded language by language."""
    ids_by_language: dict[str | None, list[str]] = defaultdict(list)
    for text_id in ids:
        ids_by_language[languages.get(text_id)].append(text_id)

    vector_of: dict[str, np.ndarray] = {}
    for language, group in ids_by_language.items():
        group_texts = [texts[text_id] for text_id in group]
        vectors = embed(
            encoder,
            group_texts,
            language=language,
            role=role,
            **encoding,
        )
        vector_of.update(zip(group, vectors, strict=True))
    return np.stack([vector_of[text_id] for text_id in ids])


def _read(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> RowInputs:
    """Reads a wide table of parallel texts, or queries, documents and relevance."""
    documents = options.get("documents")
    relevance = options.get("relevance")
    if not documents and not relevance:
        return read_rows(protocol, data, options)
    if not documents or not relevance:
        raise XlsrError("--documents and --relevance belong together.")

    table = open_data(protocol, data)
    tags = ("lang", "split")
    query_table = narrowed(table, ("query_id", "text"), tags)
    document_table = narrowed(table, ("document_id", "text"), tags)
    relevance_table = narrowed(table, ("query_id", "document_id"), ("score", "split"))

    query_table = query_table.open(data.files, data.languages[:1])
    queries = query_table.split(data.split)
    # One language is that of the queries; documents that have languages of their own stay whole.
    document_table = document_table.open(documents, data.languages[-1:])
    pool = document_table.split(None, select=len(data.languages) > 1)
    query_language = queries[0]["lang"]
    relevance_table = relevance_table.open((relevance,), (query_language,))
    judgements = relevance_table.split(data.split)

    tables = {"rows": queries, "pool": pool, "relevance": judgements}
    return SearchInputs(**finished_fields(protocol, table, data, tables, whole=["pool", "relevance"]))


def _run(encoder: Encoder, inputs: RowInputs, options: SearchOptions) -> Results:
    if not isinstance(inputs, SearchInputs):
        if options.documents:
            raise XlsrError("--documents is not supported with several protocols; run protocol search alone.")
        return search(encoder, parallel_texts(inputs), debias=inputs.debias, **inputs.common)
    if inputs.debias is not None:
        raise XlsrError("--debias needs parallel texts; it is not supported with --documents.")

    relevance: dict[str, dict[str, float]] = defaultdict(dict)
    for row in inputs.relevance:
        query = str(row["query_id"])
        gain = read_score(row.get("score"), f"a document of query {query} in --relevance", 1)
        relevance[query][str(row["document_id"])] = gain

    documents = {}
    document_languages = {}
    for row in inputs.pool:
        document = str(row["document_id"])
        documents[document] = row["text"]
        document_languages[document] = row["lang"]
    distinct_languages = set(document_languages.values())

    results = Results()
    for language, rows in by_language(inputs.rows).items():
        queries = {str(row["query_id"]): row["text"] for row in rows}

        languages: str | tuple[str, str] = language
        if len(distinct_languages) == 1 and language not in distinct_languages:
            languages = (language, *distinct_languages)
        results |= search_documents(
            encoder,
            queries,
            documents,
            relevance,
            languages=languages,
            query_languages=dict.fromkeys(queries, language),
            document_languages=document_languages,
            **inputs.common,
        )
    return results


PROTOCOLS = (
    row_protocol(
        "search",
        "search in documents of all languages: MRR, nDCG, recall, and wrong documents of the query's own language",
        ("text",),
        _read,
        _run,
        SearchOptions,
        headline=f"ndcg@{DEPTH}",
        optional=("query_id", "document_id", "score"),
    ),
)
