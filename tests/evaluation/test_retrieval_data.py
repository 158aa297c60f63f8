"""Retrieval data sets in the layouts in which they are published, and ids that stand for two texts."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bitext_helpers import TableEncoder
from input_helpers import read, write_tsv

from hf_xlsr.evaluation.protocol import PROTOCOLS
from hf_xlsr.utils.errors import XlsrError

QUERIES = [("q1", "cat"), ("q2", "bird"), ("q3", "house")]
DOCUMENTS = [("d1", "cat", "runs"), ("d2", "bird", "runs"), ("d3", "river", "")]
JUDGEMENTS = {"test": [("q1", "d1", 1), ("q2", "d2", 2), ("q2", "d3", 0)], "dev": [("q3", "d3", 1)]}
EN: dict[str, Any] = {"languages": ("en",)}
CARD = """---
configs:
- config_name: {prefix}default
  data_files: [{{split: test, path: test.jsonl}}, {{split: dev, path: dev.jsonl}}]
- config_name: {prefix}corpus
  data_files: [{{split: corpus, path: corpus.parquet}}]
- config_name: {prefix}queries
  data_files: [{{split: queries, path: queries.parquet}}]
---
"""


def write_jsonl(path: Path, names: str, rows: list[tuple[Any, ...]]) -> str:
    lines = [json.dumps(dict(zip(names.split(), row, strict=True))) + "\n" for row in rows]
    path.write_text("".join(lines), "utf-8")
    return str(path)


def beir(folder: Path) -> dict[str, Any]:
    """A folder of BEIR."""
    (folder / "qrels").mkdir()
    write_jsonl(folder / "queries.jsonl", "_id text", QUERIES)
    write_jsonl(folder / "corpus.jsonl", "_id title text", DOCUMENTS)
    for split, rows in JUDGEMENTS.items():
        lines = ["\t".join(map(str, row)) for row in rows]
        write_tsv(folder / "qrels" / f"{split}.tsv", ["query-id\tcorpus-id\tscore", *lines])
    return {"data": str(folder)}


def zipped(folder: Path) -> dict[str, Any]:
    options = beir(folder)
    for name in ("queries", "corpus"):
        file = folder / f"{name}.jsonl"
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    return options


def files_of_beir(folder: Path) -> dict[str, Any]:
    beir(folder)
    return {
        "data": str(folder / "queries.jsonl"),
        "documents": (str(folder / "corpus.jsonl"),),
        "relevance": str(folder / "qrels" / "test.tsv"),
    }


def trec(folder: Path) -> dict[str, Any]:
    """Relevance as TREC has it."""
    lines = [f"{query} 0 {document} {score}" for query, document, score in JUDGEMENTS["test"]]
    return {**files_of_beir(folder), "relevance": write_tsv(folder / "qrels.txt", lines)}


def trec_and_columns(folder: Path) -> dict[str, Any]:
    return {**trec(folder), "columns": "query_id=_id,document_id=_id"}


def own_columns(folder: Path) -> dict[str, Any]:
    """A file for each part, with columns of its own."""
    lines = ["\t".join(map(str, row)) for row in JUDGEMENTS["test"]]
    return {
        "data": write_jsonl(folder / "a.jsonl", "number words", QUERIES),
        "columns": "query_id=number,text=words",
        "documents": (write_jsonl(folder / "b.jsonl", "number title body", DOCUMENTS),),
        "document_columns": "document_id=number,text=body",
        "relevance": write_tsv(folder / "c.tsv", ["who\twhat\thow", *lines]),
        "relevance_columns": "query_id=who,document_id=what,score=how",
    }


def configurations(folder: Path, prefix: str = "") -> dict[str, Any]:
    """mteb's layout: a data set with configurations."""
    (folder / "README.md").write_text(CARD.format(prefix=prefix).replace("de-default", "de-qrels"), "utf-8")
    for split, rows in JUDGEMENTS.items():
        write_jsonl(folder / f"{split}.jsonl", "query-id corpus-id score", rows)
    query_ids, queries = zip(*QUERIES, strict=True)
    pq.write_table(pa.table({"_id": query_ids, "text": queries}), folder / "queries.parquet")
    document_ids, titles, texts = zip(*DOCUMENTS, strict=True)
    pq.write_table(pa.table({"_id": document_ids, "title": titles, "text": texts}), folder / "corpus.parquet")
    return {"data": str(folder)}


def configurations_by_language(folder: Path) -> dict[str, Any]:
    return {**configurations(folder, "de-"), "config": "{lang}", "languages": ("de",)}


LAYOUTS = [
    beir,
    zipped,
    files_of_beir,
    trec,
    trec_and_columns,
    own_columns,
    configurations,
    configurations_by_language,
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: Callable[[Path], dict[str, Any]], tmp_path: Path) -> None:
    options = {**EN, **layout(tmp_path)}
    (collection,) = read("search", options.pop("data"), **options).collections

    assert collection.languages == options["languages"][0]
    assert collection.queries == {"q1": "cat", "q2": "bird"}
    assert collection.documents == {"d1": "cat runs", "d2": "bird runs", "d3": "river"}
    relevant = {
        query: {name: gain for name, gain in gains.items() if gain} for query, gains in collection.relevance.items()
    }
    assert relevant == {"q1": {"d1": 1}, "q2": {"d2": 2}}


@pytest.mark.parametrize("layout", [beir, configurations])
def test_splits(layout: Callable[[Path], dict[str, Any]], tmp_path: Path) -> None:
    data = layout(tmp_path)["data"]
    (collection,) = read("search", data, split="validation", **EN).collections
    assert collection.queries == {"q3": "house"}

    with pytest.raises(XlsrError, match=r"'train'.*dev, test"):
        read("search", data, split="train", **EN)


def test_only_judged_queries_are_drawn(tmp_path: Path) -> None:
    options = files_of_beir(tmp_path)
    (collection,) = read("search", options.pop("data"), limit=1, **options, **EN).collections
    assert len(collection.queries) == 1
    assert len(collection.documents) == 3


TABLES = {
    "queries.tsv": ["query_id\ttext\tlang", "q1\tcat\ten", "q1\tKatze\tde"],
    "documents.tsv": ["document_id\ttext\tlang", "d1\ta cat\ten", "d1\teine Katze\tde", "d2\ta dog\ten"],
    "relevance.tsv": ["query_id\tdocument_id\tscore", "q1\td1\t1"],
}


def read_tables(folder: Path, languages: tuple[str, ...] = (), **changes: list[str]) -> Any:
    """Reads `TABLES` with additional lines."""
    for name, lines in TABLES.items():
        write_tsv(folder / name, [*lines, *changes.get(name.removesuffix(".tsv"), [])])
    options = {"documents": (str(folder / "documents.tsv"),), "relevance": str(folder / "relevance.tsv")}
    return read("search", str(folder / "queries.tsv"), languages=languages, **options)


def test_languages_that_share_ids_are_searched_apart(tmp_path: Path) -> None:
    english, german = read_tables(tmp_path).collections
    assert (english.languages, english.documents) == ("en", {"d1": "a cat", "d2": "a dog"})
    assert (german.languages, german.documents) == ("de", {"d1": "eine Katze"})

    french = {"queries": ["q1\tchat\tfr"]}
    collections = read_tables(tmp_path, **french).collections
    assert [collection.languages for collection in collections] == ["en", "de", ("fr", "en"), ("fr", "de")]


@pytest.mark.parametrize(
    ("part", "line", "key"),
    [
        ("queries", "q1\tdog\ten", "'q1'"),
        ("documents", "d2\tthe dog\ten", "'d2'"),
        ("relevance", "q1\td1\t2", "'d1'"),
    ],
)
def test_an_id_that_occurs_twice(part: str, line: str, key: str, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match=key):
        read_tables(tmp_path, **{part: [line]})
    repeated_line = TABLES[f"{part}.tsv"][-1]
    assert read_tables(tmp_path, **{part: [repeated_line]}).collections


def test_invalid_qrels(tmp_path: Path) -> None:
    options = trec(tmp_path)
    qrels = Path(options["relevance"])
    qrels.write_text(qrels.read_text("utf-8") + "q1 d1 1\n", "utf-8")
    with pytest.raises(XlsrError, match="after 3 lines"):
        read("search", options.pop("data"), **options, **EN)


@pytest.mark.parametrize("subsets", [("default",), ("one", "two")])
def test_a_task_of_mteb(subsets: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    mteb = pytest.importorskip("mteb")
    from datasets import Dataset

    task = mteb.get_task("ArguAna")
    names = {"queries": ("id", "text"), "corpus": ("id", "title", "text")}
    data: dict[str, Any] = {
        "queries": [("d1", "cat runs")],
        "corpus": [("d1", "cat", "runs"), ("d2", "cat", "walks"), ("d3", "", "dog")],
    }
    for part, columns in names.items():
        data[part] = Dataset.from_list([dict(zip(columns, row, strict=True)) for row in data[part]])
    split = {**data, "relevant_docs": {"d1": {"d2": 1}}, "top_ranked": None}
    task.dataset = {subset: {"test": split} for subset in subsets}
    task.data_loaded = True
    task.hf_subsets = list(subsets)
    if len(subsets) > 1:
        languages = dict.fromkeys(subsets, ["eng-Latn"])
        task.metadata = task.metadata.model_copy(update={"eval_langs": languages})
    monkeypatch.setattr("hf_xlsr.evaluation.mteb.tasks.mteb.get_task", lambda *names, **options: task)

    inputs = read("search", "mteb:ArguAna")
    vectors = {"cat runs": [1, 0], "cat walks": [1, 1], "dog": [0, 1]}
    metrics = PROTOCOLS["search"].run(TableEncoder(vectors), inputs, PROTOCOLS["search"].options())

    data_names = ["ArguAna"] if len(subsets) == 1 else ["ArguAna-one", "ArguAna-two"]
    for name in data_names:
        assert metrics[f"{name}-search-ignore-identical-ids/en/test/recall@1"] == 1
        assert metrics[f"{name}-search-ignore-identical-ids/en/test/documents"] == 3
