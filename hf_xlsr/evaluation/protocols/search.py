"""Protocol `search`: what an encoder finds among documents in several languages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.cache import CachedEncoder
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed, unit_length
from hf_xlsr.evaluation.parallel_texts import encode_parallel, parallel_texts
from hf_xlsr.evaluation.protocol import DataOptions, DebiasOptions, Inputs, Protocol, option
from hf_xlsr.evaluation.protocol_kinds import row_protocol
from hf_xlsr.evaluation.reading import finish_inputs, open_inputs, read_table
from hf_xlsr.evaluation.results import Results, averaged, mean_over_languages
from hf_xlsr.evaluation.rows import by_language, read_score
from hf_xlsr.evaluation.table import TableReader
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
        "search",
        "search in documents of all languages: MRR, nDCG, recall, and wrong documents of the query's own language",
        ("text",),
        _run_search,
        SearchOptions,
        read=_read,
        optional=("query_id", "document_id", "score"),
    ),
)
