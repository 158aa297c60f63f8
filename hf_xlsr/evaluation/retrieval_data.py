"""Reading retrieval data sets: three tables with our columns, or as BEIR, TREC and mteb publish them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hf_xlsr.data.columns import PLACEHOLDER, parse_columns, split_name
from hf_xlsr.data.corpora.loading import CORPORA
from hf_xlsr.data.formats.dataset_folders import dataset_configs
from hf_xlsr.data.formats.lines import BadLine, BrokenFile, decode, iter_lines, open_binary
from hf_xlsr.data.formats.reading import column_names
from hf_xlsr.evaluation.protocol import DataOptions, Protocol, Rows
from hf_xlsr.evaluation.reading import narrowed, open_data
from hf_xlsr.evaluation.retrieval_rows import RetrievalRows, gain_of, no_relevance
from hf_xlsr.evaluation.rows import Row
from hf_xlsr.evaluation.table import MTEB, Table, is_table
from hf_xlsr.utils.errors import XlsrError

# Names of columns in published data sets, the first that a file has, where it has no column of our name.
PUBLISHED = {
    "query_id": ("query-id", "_id", "qid", "id"),
    "document_id": ("corpus-id", "_id", "doc_id", "docid", "id"),
    "text": ("query", "question"),
    "score": ("relevance",),
}
COLUMNS = {
    "queries": (("query_id", "text"), ("lang", "split")),
    "documents": (("document_id", "text"), ("title", "lang", "split")),
    "relevance": (("query_id", "document_id"), ("score", "lang", "split")),
}
OWN_COLUMNS = {"documents": "document_columns", "relevance": "relevance_columns"}  # options beside `--columns`
TREC_WIDTH = 4  # of qrels: query, iteration, document, relevance


class Location(NamedTuple):
    """Where one of the three tables is: files, and the configuration of a dataset."""

    files: tuple[str, ...]
    config: str | None = None


def has_retrieval_layout(data: DataOptions) -> bool:
    """Whether `--data` alone is a whole retrieval data set."""
    return _is_mteb_retrieval(data) or bool(_published_locations(data))


def read_retrieval(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> tuple[Table, RetrievalRows]:
    """The rows of a retrieval data set, of queries only those with a relevant document; and the table of `--data`."""
    table = open_data(protocol, data)
    if _is_mteb_retrieval(data):
        from hf_xlsr.evaluation.mteb.retrieval import mteb_retrieval

        task_name = data.files[0].removeprefix(MTEB)
        rows = mteb_retrieval(task_name, data.languages, split=data.split)
    else:
        rows = _read_tables(table, data, options)

    judged_queries = set()
    for row in rows.relevance:
        if gain_of(row) > 0:
            judged_queries.add(_query_key(row))
    queries = [row for row in rows.queries if _query_key(row) in judged_queries]
    if not queries:
        raise no_relevance(table.source_name)
    return table, replace(rows, queries=queries)


def _query_key(row: Row) -> tuple[Any, str]:
    return row.get("subset"), str(row["query_id"])


def _is_mteb_retrieval(data: DataOptions) -> bool:
    if not data.files[0].startswith(MTEB):
        return False
    from hf_xlsr.evaluation.mteb.tasks import mteb_task

    task = mteb_task(data.files[0].removeprefix(MTEB))
    return str(task.metadata.type) == "Retrieval"


def _published_locations(data: DataOptions) -> dict[str, Location]:
    """Where the tables of a published data set are; empty for other data."""
    source = data.files[0]
    if len(data.files) > 1 or source in CORPORA or source.startswith(MTEB) or is_table(data.files):
        return {}

    folder = Path(source).expanduser()
    queries = sorted(folder.glob("queries.jsonl*"))
    documents = sorted(folder.glob("corpus.jsonl*"))
    if queries and documents:
        return {
            "queries": Location((str(queries[0]),)),
            "documents": Location((str(documents[0]),)),
            "relevance": Location((_qrels_of_beir(folder / "qrels", data.split),)),
        }

    prefix = f"{data.config}-" if data.config else ""
    configs = dataset_configs(source)
    if _in_first_language(f"{prefix}corpus", data.languages) not in configs:
        return {}
    has_qrels = prefix or "qrels" in configs
    return {
        "queries": Location(data.files, f"{prefix}queries"),
        "documents": Location(data.files, f"{prefix}corpus"),
        "relevance": Location(data.files, f"{prefix}qrels" if has_qrels else "default"),
    }


def _in_first_language(text: str, languages: Sequence[str]) -> str:
    """A text with the first language in place of `{lang}`."""
    return text.replace(PLACEHOLDER, languages[0]) if languages else text


def _qrels_of_beir(folder: Path, split: str) -> str:
    """The file of relevance of a split."""
    files = {}
    for file in sorted(folder.glob("*.*")):
        stem = file.name.partition(".")[0]
        files[split_name(stem)] = str(file)

    wanted = split_name(split)
    if wanted not in files:
        names = ", ".join(files)
        raise XlsrError(f"'{folder}' has no split '{split}'; its splits are {names or 'none'}.")
    return files[wanted]


def _read_tables(table: Table, data: DataOptions, options: Mapping[str, Any]) -> RetrievalRows:
    """The rows of three tables, each with columns and languages of its own."""
    locations = _published_locations(data)
    if options.get("documents"):
        locations = {
            "queries": Location(data.files, data.config),
            "documents": Location(options["documents"], data.config),
            "relevance": Location((options["relevance"],), data.config),
        }

    tables = {}
    for part, (required, optional) in COLUMNS.items():
        files, config = locations[part]
        tables[part] = replace(narrowed(table, required, optional), files=files, config=config)
        own_columns = options.get(OWN_COLUMNS.get(part, ""))
        if own_columns:
            tables[part] = replace(tables[part], columns=parse_columns(own_columns))

    # One language is that of the queries; documents may have another, and stay whole if they have languages of their own.
    queries = _open(tables["queries"], data, data.languages[:1]).split(data.split)
    document_table = _open(tables["documents"], data, data.languages[-1:])
    document_table = replace(document_table, nullable=("text",))  # a title may be all there is
    split = None if is_table(document_table.files) else data.split
    documents = document_table.split(split, select=len(data.languages) > 1)

    language = queries[0]["lang"]
    qrels = locations["relevance"].files[0]
    if "relevance_columns" not in options and _is_trec(qrels):
        relevance = read_trec(qrels, language)
    else:
        relevance = _open(tables["relevance"], data, (language,)).split(data.split)
    return RetrievalRows(queries, documents, relevance)


def _open(table: Table, data: DataOptions, languages: Sequence[str]) -> Table:
    """The table in these languages, or once for each language that the user names, if it has `{lang}`."""
    texts = [*table.files, *table.columns.values(), table.config or ""]
    if any(PLACEHOLDER in text for text in texts):
        languages = data.languages
    return with_published_names(table.open(table.files, languages), data.split)


def with_published_names(table: Table, split: str) -> Table:
    """The table with columns of published names where the file has none of ours."""
    files = [_in_first_language(file, table.languages) for file in table.files]
    config = table.config and _in_first_language(table.config, table.languages)
    names = column_names(files[0] if len(files) == 1 else files, config=config, split=split)

    columns = dict(table.columns)
    for ours in (*table.required, *table.optional):
        if columns.get(ours, ours) in names:
            continue
        published = [name for name in PUBLISHED.get(ours, ()) if name in names]
        if published:
            columns[ours] = published[0]
    return replace(table, columns=columns)


def _is_trec(path: str) -> bool:
    """Whether a file has the lines of TREC's qrels."""
    file_path = Path(path).expanduser()
    if not file_path.is_file():
        return False
    with open_binary(file_path) as file:
        first_line = next(iter_lines(file), b"")
    fields = first_line.split()
    return len(fields) == TREC_WIDTH and fields[-1].removeprefix(b"-").isdigit()


def read_trec(path: str, language: str) -> Rows:
    """The rows of TREC's qrels: lines of query, iteration, document and relevance, with white space between."""
    rows: Rows = []
    try:
        with open_binary(Path(path).expanduser()) as file:
            for line in filter(bytes.strip, iter_lines(file)):
                fields = decode(line).split()
                if len(fields) != TREC_WIDTH:
                    raise BadLine("the next one must be query, iteration, document and relevance")
                query, _, document, score = fields
                rows.append({"query_id": query, "document_id": document, "score": score, "lang": language})
    except (BrokenFile, BadLine) as error:
        raise XlsrError(f"Cannot read {path} after {len(rows)} lines: {error}.") from error
    return rows
