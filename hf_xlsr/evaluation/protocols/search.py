"""Protocol `search`: a query in one language, a pool of documents in all languages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed, unit_length
from hf_xlsr.evaluation.inputs import DataOptions, Inputs, finish_inputs, open_inputs, read_table
from hf_xlsr.evaluation.protocols.language_bias import encode_parallel, parallel_texts
from hf_xlsr.evaluation.registry import DebiasOptions, Protocol, option, row_protocol
from hf_xlsr.evaluation.results import Results, averaged, mean_over_languages
from hf_xlsr.evaluation.rows import by_language
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

    `texts` and `debias` are those of `language_bias`. Every sentence of every language is a query. The pool has the
    sentences of all languages without the query itself; its translations are relevant. For each pair of languages the
    one translation is ranked among the documents that are no translation. A document of equal similarity is ranked above
    it: an encoder that gives all texts one vector finds nothing.

    Returns:
        For each language of queries and of documents, under `{name}-search/en-de/test/`: `mrr` (mean of 1 / rank),
        `ndcg@10`, `recall@1`, `recall@10`, `queries` and `own_language_error`, the share of queries for which a wrong
        document of the query's own language ranks above the translation. For each language of queries, under
        `{name}-search/en/test/`, the same over all its relevant documents: `all_mrr` (of the first), `all_ndcg@10` and
        `all_recall@10`. Then the means over languages. After a removal the protocol is `search-pcr1` and the like.

    Examples:
        >>> class Lengths:
        ...     def encode(self, texts, **kwargs):
        ...         return np.array([[len(text), 1.0, text.count("e")] for text in texts])
        >>> texts = {"en": ["one", "eleven", "hundred"], "fr": ["un", "onze", "cent"]}
        >>> metrics = search(Lengths(), texts, name="numbers")
        >>> round(metrics["numbers-search/en-fr/test/mrr"], 2)
        0.34
    """
    results = Results()
    for variant, vectors in encode_parallel(encoder, texts, debias, **encoding).items():
        results |= _measured(vectors, name, f"search{variant}", split)
    return mean_over_languages(results)


def _measured(vectors: Mapping[str, np.ndarray], name: str, protocol: str, split: str) -> Results:
    pool, languages = unit_length(np.concatenate(list(vectors.values())).astype(np.float64)), list(vectors)
    count = len(pool) // len(languages)
    results = Results()
    for number, language in enumerate(languages):
        others = [place for place in range(len(languages)) if place != number]
        ranks, above, first, gains, found = map(
            np.concatenate, zip(*_ranked(pool, number, count, others), strict=True)
        )
        for column, other in enumerate(others):
            rank = ranks[:, column]
            outcomes = {"mrr": 1 / rank, "ndcg@10": np.where(rank <= DEPTH, 1 / np.log2(1 + rank), 0.0)}
            outcomes |= {f"recall@{k}": rank <= k for k in RANKS} | {"own_language_error": above[:, column]}
            pair = (language, languages[other])
            results |= averaged(name, protocol, pair, split, outcomes, {"queries": count})
        whole = {"all_mrr": 1 / first, "all_ndcg@10": gains, "all_recall@10": found}
        results |= averaged(name, protocol, language, split, whole, {"queries": count})
    return results


def _ranked(pool: np.ndarray, number: int, count: int, others: Sequence[int]) -> Iterator[tuple[np.ndarray, ...]]:
    """Blocks of the queries of a language.

    Yields, of each translation, its rank and whether a document of the query's language is above it, `(queries,
    languages - 1)`; of all translations together the rank of the first, nDCG and recall at 10, `(queries,)`.
    """
    own = slice(number * count, (number + 1) * count)
    for start in range(0, count, QUERIES):
        rows = np.arange(start, min(start + QUERIES, count))
        scores = pool[own][rows] @ pool.T
        line = np.arange(len(rows))
        places = np.array(others)[None, :] * count + rows[:, None]
        right = scores[line[:, None], places]
        scores[line[:, None], np.arange(len(others) + 1)[None, :] * count + rows[:, None]] = -np.inf
        limits = right - TIE
        ranks = 1 + np.stack([(scores > limit[:, None]).sum(axis=1) for limit in limits.T], axis=1)
        above = scores[:, own].max(axis=1, initial=-np.inf)[:, None] > limits
        order = np.sort(ranks, axis=1) + np.arange(len(others))  # translations above push the next ones down
        inside = order <= DEPTH
        gains = np.where(inside, 1 / np.log2(1 + order), 0.0).sum(axis=1)
        best = (1 / np.log2(2 + np.arange(min(len(others), DEPTH)))).sum()
        yield ranks, above, order[:, 0], gains / best, inside.mean(axis=1)


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
        query_languages: Id -> language, for a model with a route for each language. Likewise `document_languages`.

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
    pool = _encode(encoder, ids, documents, document_languages or {}, encoding)
    vectors = _encode(encoder, asked, queries, query_languages or {}, encoding)
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
    counts = {"queries": len(asked), "documents": len(documents)}
    return averaged(name, "search", languages, split, outcomes, counts)


def _encode(
    encoder: Encoder, ids: list[str], texts: Mapping[str, str], languages: Mapping[str, str], encoding: EncodingOptions
) -> np.ndarray:
    """Unit vectors of texts, encoded language by language."""
    rows: dict[str | None, list[str]] = {}
    for one in ids:
        rows.setdefault(languages.get(one), []).append(one)
    vectors: dict[str, np.ndarray] = {}
    for language, group in rows.items():
        found = embed(encoder, [texts[one] for one in group], language=language, **encoding)
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
    inputs.pool = searched.open(documents, data.languages[-1:]).split(None)
    judged = _with_columns(reader, "query_id", "document_id", optional=("score", "split"))
    inputs.relevance = judged.open((relevance,), data.languages[:1]).split(data.split)
    return finish_inputs(inputs, data, reader)


def _with_columns(reader: TableReader, *required: str, optional: tuple[str, ...] = ("lang", "split")) -> TableReader:
    columns = {ours: theirs for ours, theirs in reader.columns.items() if ours in (*required, *optional)}
    return replace(reader, required=required, optional=optional, columns=columns)


def _run(encoder: Encoder, inputs: Inputs, options: SearchOptions) -> Results:
    if not inputs.relevance:
        return search(encoder, parallel_texts(inputs), debias=inputs.debias, **inputs.common)
    if inputs.debias is not None:
        raise XlsrError("--debias needs parallel texts; it is not supported with --documents.")
    relevance: dict[str, dict[str, float]] = {}
    for row in inputs.relevance:
        relevance.setdefault(str(row["query_id"]), {})[str(row["document_id"])] = float(
            1 if row.get("score") is None else row["score"]
        )
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
        _run,
        SearchOptions,
        read=_read,
        optional=("query_id", "document_id", "score"),
    ),
)
