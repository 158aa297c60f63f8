"""The data of mteb's retrieval tasks as rows with our columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_xlsr.data.columns import split_name
from hf_xlsr.evaluation.mteb.tasks import column_language, mteb_task
from hf_xlsr.evaluation.retrieval_rows import RetrievalRows
from hf_xlsr.utils.errors import XlsrError


def mteb_retrieval(task_name: str, languages: Sequence[str] = (), *, split: str = "test") -> RetrievalRows:
    """Queries, documents and relevance of a retrieval task, of its subsets between `languages`.

    Each row has its `subset`, whose ids are its own. Titles are joined with texts as in mteb, and documents with the
    query's id are left out where the task says so (`ignore_identical_ids`).
    """
    task = mteb_task(task_name, languages)
    task.load_data()
    task.convert_v1_dataset_format_to_v2(num_proc=None)

    rows = RetrievalRows([], [], [], bool(task.ignore_identical_ids))
    for subset in task.hf_subsets:
        data = _split(task, subset, split)
        tags = list(dict.fromkeys(task.metadata.hf_subsets_to_langscripts[subset]))
        query_tag, document_tag = _languages(task_name, data, tags)
        of_queries = {"lang": query_tag, "subset": subset}
        of_documents = {"lang": document_tag, "subset": subset}

        for query in data["queries"]:
            row = {"query_id": str(query["id"]), "text": query["text"], **of_queries}
            rows.queries.append(row)
        for document in data["corpus"]:
            row = {"document_id": str(document["id"]), "text": document["text"], **of_documents}
            row["title"] = document.get("title")
            rows.documents.append(row)
        for query_id, gains in data["relevant_docs"].items():
            for document_id, gain in gains.items():
                row = {"query_id": str(query_id), "document_id": str(document_id), "score": gain, **of_queries}
                rows.relevance.append(row)
    return rows


def _split(task: Any, subset: str, split: str) -> Mapping[str, Any]:
    """The data of a split of a subset, `dev` for any name of it."""
    splits = task.dataset[subset]
    for name, data in splits.items():
        if split_name(name) == split_name(split):
            return dict(data)
    names = ", ".join(splits)
    raise XlsrError(f"Subset '{subset}' of {task.metadata.name} has no split '{split}', only {names}; use --split.")


def _languages(task_name: str, data: Mapping[str, Any], tags: Sequence[str]) -> tuple[str, str]:
    """The languages of queries and documents: of two, the one that their texts are in."""
    if len(tags) == 1:
        return tags[0], tags[0]
    if len(tags) > 2:
        raise XlsrError(f"mteb task '{task_name}' has documents in {len(tags)} languages; use protocol mteb.")
    candidates = (tags[0], tags[1])
    queries = [query["text"] for query in data["queries"]]
    documents = [document["text"] for document in data["corpus"]]
    return (
        column_language(queries, candidates, place=f"the queries of {task_name}"),
        column_language(documents, candidates, place=f"the documents of {task_name}"),
    )
