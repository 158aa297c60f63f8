"""Reading retrieval data sets: three tables with our columns, or as BEIR, TREC and mteb publish them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_xlsr.data.columns import PLACEHOLDER, parse_columns, split_name
from hf_xlsr.data.corpora.loading import CORPORA
from hf_xlsr.data.formats.dataset_folders import dataset_configs
from hf_xlsr.data.formats.lines import BadLine, BrokenFile, decode, iter_lines, open_binary
from hf_xlsr.data.formats.reading import column_names
from hf_xlsr.evaluation.protocol import DataOptions, Protocol, Rows
from hf_xlsr.evaluation.reading import narrowed, open_data
from hf_xlsr.evaluation.retrieval_rows import RetrievalRows, gain_of
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
TREC_WIDTH = 4  # of qrels: query, iteration, document, relevance


def has_retrieval_layout(data: DataOptions) -> bool:
    """Whether `--data` alone is a whole retrieval data set."""
    return _is_mteb_retrieval(data) or bool(_published_files(data))


def read_retrieval(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> tuple[Table, RetrievalRows]:
    """The rows of a retrieval data set, of queries only those with a relevant document; and the table of `--data`."""
    table = open_data(protocol, data)
    if _is_mteb_retrieval(data):
        from hf_xlsr.evaluation.mteb.retrieval import mteb_retrieval

        rows = mteb_retrieval(data.files[0].removeprefix(MTEB), data.languages, split=data.split)
    else:
        rows = _read_tables(table, data, options)

    judged = {(row.get("subset"), str(row["query_id"])) for row in rows.relevance if gain_of(row) > 0}
    queries = [row for row in rows.queries if (row.get("subset"), str(row["query_id"])) in judged]
    if not queries:
        raise XlsrError(
            f"{table.source_name} has no query with a relevant document; check the columns `query_id` and `document_id`."
        )
    return table, replace(rows, queries=queries)


def _is_mteb_retrieval(data: DataOptions) -> bool:
    if not data.files[0].startswith(MTEB):
        return False
    from hf_xlsr.evaluation.mteb.tasks import mteb_task

    task = mteb_task(data.files[0].removeprefix(MTEB))
    return str(task.metadata.type) == "Retrieval"


def _published_files(data: DataOptions) -> dict[str, tuple[str, str | None]]:
    """Path and configuration of each part of a published data set; empty for other data."""
    source = data.files[0]
    if len(data.files) > 1 or source in CORPORA or source.startswith(MTEB) or is_table(data.files):
        return {}

    folder = Path(source).expanduser()
    queries = _file_of(folder, "queries")
    documents = _file_of(folder, "corpus")
    if queries and documents:
        return {
            "queries": (queries, None),
            "documents": (documents, None),
            "relevance": (_judgements(folder, data.split), None),
        }

    prefix = f"{data.config}-" if data.config else ""
    names = dataset_configs(source)
    if f"{prefix}corpus".replace(PLACEHOLDER, _first(data.languages)) not in names:
        return {}
    relevance = f"{prefix}qrels" if prefix or "qrels" in names else "default"
    return {
        "queries": (source, f"{prefix}queries"),
        "documents": (source, f"{prefix}corpus"),
        "relevance": (source, relevance),
    }


def _first(languages: Sequence[str]) -> str:
    return languages[0] if languages else PLACEHOLDER


def _file_of(folder: Path, name: str) -> str | None:
    """The JSONL file of this name in a folder, which may be compressed."""
    for file in sorted(folder.glob(f"{name}.jsonl*")):
        return str(file)
    return None


def _judgements(folder: Path, split: str) -> str:
    """The file of relevance of a split in a folder of BEIR."""
    files = {split_name(file.name.partition(".")[0]): str(file) for file in sorted((folder / "qrels").glob("*.*"))}
    wanted = split_name(split)
    if wanted not in files:
        raise XlsrError(
            f"'{folder / 'qrels'}' has no split '{split}', only {', '.join(files) or 'nothing'}; use --split."
        )
    return files[wanted]


def _read_tables(table: Table, data: DataOptions, options: Mapping[str, Any]) -> RetrievalRows:
    """The rows of three tables; all may have columns and languages of their own."""
    parts: dict[str, tuple[Sequence[str], str | None]] = {
        "queries": (data.files, data.config),
        "documents": (options.get("documents") or (), data.config),
        "relevance": ((str(options.get("relevance") or ""),), data.config),
    }
    if not options.get("documents"):
        parts |= {part: ((file,), config) for part, (file, config) in _published_files(data).items()}

    tables = {}
    for part, (files, config) in parts.items():
        own_columns = options.get(f"{part.removesuffix('s')}_columns")
        part_table = replace(narrowed(table, *COLUMNS[part]), config=config, files=tuple(files))
        if own_columns:
            part_table = replace(part_table, columns=parse_columns(own_columns))
        tables[part] = part_table

    # One language is that of the queries; documents may have another, and stay whole if they have languages of their own.
    queries = _open(tables["queries"], data, data.languages[:1]).split(data.split)
    document_table = replace(_open(tables["documents"], data, data.languages[-1:]), nullable=("text",))
    split = None if is_table(document_table.files) else data.split
    documents = document_table.split(split, select=len(data.languages) > 1)

    language = queries[0]["lang"]
    relevance = tables["relevance"]
    if not relevance.columns and _is_trec(relevance.files):
        return RetrievalRows(queries, documents, read_trec(relevance.files[0], language))
    return RetrievalRows(queries, documents, _open(relevance, data, (language,)).split(data.split))


def _open(table: Table, data: DataOptions, languages: Sequence[str]) -> Table:
    """The table in these languages, or once for each language that the user names, if it has `{lang}`."""
    if any(PLACEHOLDER in text for text in (*table.files, *table.columns.values(), table.config or "")):
        languages = data.languages
    return with_published_names(table.open(table.files, languages), data.split)


def with_published_names(table: Table, split: str) -> Table:
    """The table with columns of published names where the file has none of ours."""
    first = tuple(file.replace(PLACEHOLDER, _first(table.languages)) for file in table.files)
    config = (table.config or "").replace(PLACEHOLDER, _first(table.languages)) or None
    location = first[0] if len(first) == 1 else first
    names = set(column_names(location, config=config, split=split))

    columns = dict(table.columns)
    for ours in table.required:
        if columns.get(ours, ours) in names:
            continue
        published = [name for name in PUBLISHED.get(ours, ()) if name in names]
        if published:
            columns[ours] = published[0]
    for ours in table.optional:
        published = [name for name in PUBLISHED.get(ours, ()) if name in names]
        if published and columns.get(ours, ours) not in names:
            columns[ours] = published[0]
    return replace(table, columns=columns)


def _is_trec(files: Sequence[str]) -> bool:
    """Whether a file has the lines of TREC's qrels."""
    path = Path(files[0]).expanduser()
    if len(files) > 1 or not path.is_file():
        return False
    with open_binary(path) as file:
        fields = next(iter_lines(file), b"").split()
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
