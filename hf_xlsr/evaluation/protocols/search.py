"""Protocol `search`: what an encoder finds among documents in several languages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.cache import CachedEncoder
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed, unit_length
from hf_xlsr.evaluation.containers import check_mappings
from hf_xlsr.evaluation.parallel_texts import encode_parallel, parallel_texts, read_parallel, texts_by_language
from hf_xlsr.evaluation.protocol import DataOptions, DebiasOptions, Protocol, option
from hf_xlsr.evaluation.protocol_kinds import row_protocol
from hf_xlsr.evaluation.reading import RowInputs, finished_fields
from hf_xlsr.evaluation.results import Results, mean_over_languages, measured
from hf_xlsr.evaluation.retrieval_data import has_retrieval_layout, read_retrieval
from hf_xlsr.evaluation.retrieval_rows import Collection, collections_of, no_relevance
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
    documents: tuple[str, ...] = option(
        (), "documents of a retrieval data set: document_id, text [title lang]", data=True, files=True
    )
    relevance: str | None = option(
        None, "relevant documents: query_id, document_id [score lang], or qrels of TREC", data=True, files=True
    )
    document_columns: str | None = option(None, "as --columns, for --documents alone", data=True)
    relevance_columns: str | None = option(None, "as --columns, for --relevance alone", data=True)
    ignore_identical_ids: bool = option(
        False, "leave out the document that has the id of the query; part of the key", data=True
    )


@dataclass(kw_only=True)
class SearchInputs(RowInputs):
    """A retrieval data set, whose queries are the rows."""

    collections: list[Collection]
    ignore_identical_ids: bool = False


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
    texts = texts_by_language(texts)
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
    ignore_identical_ids: bool = False,
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
        ignore_identical_ids: Leave out the document that has the id of the query, as BEIR and some of mteb's tasks do
            where queries are documents too (ArguAna, Quora). Where it is relevant, it counts as not found.

    Returns:
        `mrr`, `ndcg@10`, `recall@1`, `recall@10`, `queries` and `documents`, under `{name}-search/en/test/`, without
        identical ids `{name}-search-ignore-identical-ids/en/test/`.
    """
    check_mappings(queries=queries, documents=documents, relevance=relevance)
    document_ids = sorted(documents, reverse=True)
    column_of = {document: column for column, document in enumerate(document_ids)}
    gains_of = _gains(queries, column_of, relevance, name)
    query_ids = list(gains_of)
    pool = _encode(encoder, document_ids, documents, document_languages or {}, "document", encoding)
    vectors = _encode(encoder, query_ids, queries, query_languages or {}, "query", encoding)

    values: dict[str, list[float]] = defaultdict(list)
    for start in range(0, len(query_ids), QUERIES):
        block = slice(start, start + QUERIES)
        similarities = vectors[block] @ pool.T
        for query, scores in zip(query_ids[block], similarities, strict=True):
            own = column_of.get(query) if ignore_identical_ids else None
            for metric, value in _query_metrics(scores, gains_of[query], own).items():
                values[metric].append(value)

    outcomes = {metric: np.array(of_queries) for metric, of_queries in values.items()}
    counts = {"queries": len(query_ids), "documents": len(documents)}
    protocol = "search-ignore-identical-ids" if ignore_identical_ids else "search"
    return measured(name, protocol, languages, split, counts, outcomes, candidates=len(documents))


def _gains(
    queries: Iterable[str], column_of: Mapping[str, int], relevance: Mapping[str, Mapping[str, float]], name: str
) -> dict[str, dict[int, float]]:
    """The gain of each relevant document by its column, of the queries that have one."""
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
        raise no_relevance(name)
    return gains_of


def _query_metrics(scores: np.ndarray, gains: Mapping[int, float], own: int | None) -> dict[str, float]:
    """Metrics of one query, from the similarity of each document and the gain of each relevant one, by its column.

    `own` is a document that is left out.
    """
    if own is not None:
        scores = scores.copy()
        scores[own] = -np.inf
    by_trec = trec_metrics(scores, gains, own, depth=DEPTH, ranks=RANKS)
    if by_trec is not None:
        return by_trec

    ranks: list[float] = []
    gained = 0.0
    for column in sorted(gains):
        rank = np.inf if column == own else _rank(scores, column)
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
    if bool(documents) != bool(options.get("relevance")):
        raise XlsrError("--documents and --relevance belong together.")
    if not documents and not has_retrieval_layout(data):
        return read_parallel(protocol, data, options)

    table, rows = read_retrieval(protocol, data, options)
    tables = {"rows": rows.queries, "pool": rows.documents, "relevance": rows.relevance}
    fields = finished_fields(protocol, table, data, tables, whole=["pool", "relevance"])
    named_rows = replace(rows, queries=fields["rows"], documents=fields.pop("pool"), relevance=fields.pop("relevance"))
    return SearchInputs(
        **fields,
        collections=collections_of(named_rows),
        ignore_identical_ids=rows.ignore_identical_ids,
    )


def _run(encoder: Encoder, inputs: RowInputs, options: SearchOptions) -> Results:
    if not isinstance(inputs, SearchInputs):
        if options.documents:
            raise XlsrError("--documents is not supported with several protocols; run protocol search alone.")
        return search(encoder, parallel_texts(inputs), debias=inputs.debias, **inputs.common)

    if inputs.debias is not None:
        raise XlsrError("--debias needs parallel texts; it is not supported with --documents.")

    times = Counter(collection.languages for collection in inputs.collections)
    results = Results()
    for collection in inputs.collections:
        name = inputs.name
        if times[collection.languages] > 1:  # subsets that are no languages
            name += f"-{collection.subset}"

        results |= search_documents(
            encoder,
            collection.queries,
            collection.documents,
            collection.relevance,
            languages=collection.languages,
            query_languages=dict.fromkeys(collection.queries, collection.query_language),
            document_languages=collection.document_languages,
            ignore_identical_ids=options.ignore_identical_ids or inputs.ignore_identical_ids,
            **{**inputs.common, "name": name},
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
