"""Rows of a retrieval data set, and the searches in it: which queries among which documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hf_xlsr.evaluation.rows import Row, by_language, by_subset, read_score
from hf_xlsr.evaluation.table import Row as TableRow
from hf_xlsr.utils.errors import XlsrError


@dataclass(frozen=True)
class RetrievalRows:
    """Rows with our columns. Those with a `subset` of their own belong to different data sets.

    `ignore_identical_ids`: whether the data set leaves the document with the query's id out.
    """

    queries: list[TableRow]
    documents: list[TableRow]
    relevance: list[TableRow]
    ignore_identical_ids: bool = False


@dataclass(frozen=True)
class Collection:
    """Queries in one language and the documents that they are searched in.

    Attributes:
        subset: Of the data set, if it has several.
        languages: Name of the results: of queries, and of documents where it is another one.
        queries: Id -> text; likewise `documents`.
        relevance: Query -> document -> gain.
        document_languages: Document -> language.
    """

    subset: str | None
    languages: str | tuple[str, str]
    query_language: str
    queries: dict[str, str]
    documents: dict[str, str]
    relevance: Mapping[str, Mapping[str, float]]
    document_languages: dict[str, str]


def gain_of(row: Row) -> float:
    """The gain of a document for a query; 1 where a row has no score."""
    return read_score(row.get("score"), f"a document of query {row['query_id']} in --relevance", 1)


def no_relevance(name: str) -> XlsrError:
    """The error of a data set without a query that has a relevant document."""
    return XlsrError(f"{name} has no query with a relevant document; check the columns `query_id` and `document_id`.")


def collections_of(rows: RetrievalRows) -> list[Collection]:
    """The searches in a data set: one for each language of queries.

    All documents are one pool, unless an id stands for a document in each of several languages, as in mMARCO: then those
    of a language are searched by its queries, or each language's by all queries if these are in another.

    Raises:
        XlsrError: An id has two texts, or a document two scores for a query.
    """
    documents_of_subset = by_subset(rows.documents)
    relevance_of_subset = by_subset(rows.relevance)

    collections = []
    for subset, queries in by_subset(rows.queries).items():
        pools = _pools(documents_of_subset[subset])
        for language, group in by_language(queries).items():
            gains = _gains(relevance_of_subset[subset], language)
            searched = [pools[language]] if language in pools else list(pools.values())
            for documents in searched:
                collections.append(_collection(subset, language, group, documents, gains))
    return collections


def _collection(
    subset: str | None,
    language: str,
    queries: list[TableRow],
    documents: list[TableRow],
    relevance: Mapping[str, Mapping[str, float]],
) -> Collection:
    document_languages = {str(row["document_id"]): row["lang"] for row in documents}
    distinct_languages = set(document_languages.values())
    languages: str | tuple[str, str] = language
    if len(distinct_languages) == 1 and language not in distinct_languages:
        languages = (language, *distinct_languages)

    return Collection(
        subset=subset,
        languages=languages,
        query_language=language,
        queries=_by_id(queries, "query_id"),
        documents=_by_id(documents, "document_id"),
        relevance=relevance,
        document_languages=document_languages,
    )


def _pools(documents: list[TableRow]) -> dict[str, list[TableRow]]:
    """The documents as one pool under an empty name, or by language where languages share ids."""
    languages_of_id: dict[str, set[str]] = defaultdict(set)
    for row in documents:
        languages_of_id[str(row["document_id"])].add(row["lang"])
    if any(len(languages) > 1 for languages in languages_of_id.values()):
        return dict(by_language(documents))
    return {"": documents}


def _by_id(rows: Iterable[Row], column: str) -> dict[str, str]:
    """Id -> text, after the title of a document."""
    texts: dict[str, str] = {}
    for row in rows:
        text_id = str(row[column])
        text = document_text(row)
        first_text = texts.setdefault(text_id, text)
        if first_text != text:
            raise XlsrError(
                f"`{column}` '{text_id}' has two texts, {first_text!r:.60} and {text!r:.60}. Give each an id of its own."
            )
    return texts


def document_text(row: Row) -> str:
    """Title and text with a space between, as BEIR and mteb join them.

    Examples:
        >>> document_text({"title": "Cats", "text": "Cats purr."}), document_text({"text": "Cats purr."})
        ('Cats Cats purr.', 'Cats purr.')
    """
    title = row.get("title") or ""
    text = row.get("text") or ""
    return f"{title} {text}".strip()


def _gains(relevance: Iterable[Row], language: str) -> dict[str, dict[str, float]]:
    """Query -> document -> gain; rows in several languages are only for the queries in their own."""
    groups = by_language(relevance)
    if len(groups) > 1:
        groups = {language: groups.get(language, [])}

    gains: dict[str, dict[str, float]] = defaultdict(dict)
    for rows in groups.values():
        for row in rows:
            query = str(row["query_id"])
            document = str(row["document_id"])
            gain = gain_of(row)
            first_gain = gains[query].setdefault(document, gain)
            if first_gain != gain:
                raise XlsrError(
                    f"document '{document}' has two scores for query '{query}', {first_gain:g} and {gain:g}."
                )
    return gains
