"""Reading what a protocol is run on: a class of inputs for each kind of data, and the function that reads it."""

from __future__ import annotations

import logging
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hf_xlsr.data.columns import parse_columns
from hf_xlsr.evaluation.drawing import content_key, drawn_rows, pair_key, reference_language, translation_key
from hf_xlsr.evaluation.languages import metric_languages
from hf_xlsr.evaluation.protocol import DataOptions, Inputs, Protocol, Rows
from hf_xlsr.evaluation.rows import by_language, by_pair
from hf_xlsr.evaluation.table import FILE_ROW, Row, Table, data_name, is_table, parse_where
from hf_xlsr.utils.errors import XlsrError, did_you_mean
from hf_xlsr.utils.hashing import data_hash

logger = logging.getLogger(__name__)

LANGUAGE_COLUMNS = ("source_lang", "target_lang", "lang")
TEXT_COLUMNS = {"source": "source_lang", "target": "target_lang", "text": "lang"}


@dataclass(kw_only=True)
class RowInputs(Inputs):
    """Rows to test on."""

    rows: Rows

    @property
    def texts(self) -> dict[str, list[str]]:
        """The distinct sentences to test on, of each language."""
        texts: dict[str, dict[str, None]] = defaultdict(dict)
        for row in self.rows:
            for column, language_column in TEXT_COLUMNS.items():
                if column in row:
                    language = row[language_column]
                    texts[language][row[column]] = None

        return {language: list(distinct_texts) for language, distinct_texts in texts.items()}


@dataclass(kw_only=True)
class PairInputs(RowInputs):
    """Translation pairs to test on, and further pairs that are only candidates."""

    pool: Rows = field(default_factory=list)


@dataclass(kw_only=True)
class TunedInputs(RowInputs):
    """Rows to test on, and rows to choose thresholds on."""

    tune: Rows = field(default_factory=list)


@dataclass(kw_only=True)
class TrainedInputs(TunedInputs):
    """Rows to test on, and rows in one language to train a head on and to choose it."""

    train: Rows
    train_language: str


@dataclass(kw_only=True)
class TaskInputs(Inputs):
    """Rows to test on by task."""

    tasks: dict[str, Rows]

    @property
    def tasks_by_language(self) -> dict[str, dict[str, Rows]]:
        """Rows by language and task."""
        tasks_by_language: dict[str, dict[str, Rows]] = defaultdict(dict)
        for task, rows in self.tasks.items():
            for language, group in by_language(rows).items():
                tasks_by_language[language][task] = group

        return tasks_by_language


def _open_tested(protocol: Protocol, data: DataOptions) -> tuple[Table, dict[str, Rows]]:
    """The table of `--data`, and the rows to test on by the name of their field."""
    table = open_data(protocol, data)
    return table, {"rows": read_one_table(table, "--data", data.split)}


def read_pairs(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> PairInputs:
    """Reads translation pairs, and the candidates of `pool`."""
    table, tables = _open_tested(protocol, data)
    pool = options.get("pool")
    if pool:
        split = None if is_table(pool) else data.split
        pool_table = table.open(pool, data.languages)
        tables["pool"] = read_one_table(pool_table, "--pool", split)

    # The pool stays whole: with fewer candidates retrieval is another, easier test.
    return PairInputs(**finished_fields(protocol, table, data, tables, whole=["pool"]))


def read_language_rows(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> RowInputs:
    """Reads the rows of one table, each in one language."""
    table, tables = _open_tested(protocol, data)
    return RowInputs(**finished_fields(protocol, table, data, tables))


def read_tuned(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> TunedInputs:
    """Reads the rows of one table, and those of `tune`."""
    table, tables = _open_tested(protocol, data)
    if options.get("tune"):
        tune_table = table.open(options["tune"], data.languages)
        tables["tune"] = read_one_table(tune_table, "--tune", "dev")

    fields = finished_fields(protocol, table, data, tables)
    _check_leaks(protocol, fields)
    return TunedInputs(**fields)


def read_tasks(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> TaskInputs:
    """Reads rows of several tasks: one file each, which its name or `NAME=FILE` assigns."""
    table = open_data(protocol, data)
    data.refuse(protocol.name, "name")
    if protocol.tasks:
        data.refuse(protocol.name, "split")

    tables: dict[str, Rows] = {}
    for entry in data.files:
        task, equals, file = entry.partition("=")
        if not equals or Path(entry).exists():
            task = data_name([entry])
            file = entry
        if task in tables:
            raise XlsrError(f"--data has two files of task '{task}'; distinguish them by NAME=FILE.")

        table_of_task = table.open((file,), data.languages)
        if protocol.tasks:
            tables[task] = _read_task(protocol, table_of_task, task)
        else:
            tables[task] = table_of_task.split(data.split)

    tables = finish_tables(tables, table, data)
    roles = {f"data/{task}": rows for task, rows in tables.items()}
    return TaskInputs(**input_facts(protocol, table, data, roles), tasks=tables)


def _read_task(protocol: Protocol, table: Table, task: str) -> Rows:
    """All splits of a task that has columns of its own."""
    kind = task.partition(".")[0]
    if kind not in protocol.tasks:
        hint = did_you_mean(kind, protocol.tasks)
        raise XlsrError(f"protocol {protocol.name} has no task '{task}'; {hint} Or use TASK=FILE.")

    required = protocol.tasks[kind]
    if not is_table(table.files):  # datasets distinguish splits by name; the rows of a file need a column
        required = tuple(name for name in required if name != "split")
    return narrowed(table, required, protocol.optional).all_splits()


def read_trained(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> TrainedInputs:
    """Reads rows to test on, and those that a head is trained and chosen on in one language."""
    table = open_data(protocol, data)
    train_language = options.get("train_language") or next(iter(data.languages), None)
    if train_language is None:
        raise XlsrError("--train-language is missing: the language that the head is trained in, e.g. en.")
    in_language = table.open(data.files, (train_language,))
    hold_out = options.get("hold_out")

    tables = {"rows": read_one_table(table, "--data", data.split)}
    train = _open_split("train", options.get("train"), [in_language])
    tables["train"] = read_one_table(train, "--train", "train")
    if not hold_out:
        tune = _open_split("dev", options.get("tune"), [train, in_language])
        tables["tune"] = read_one_table(tune, "--tune", "dev")

    asked = replace(data, languages=(*data.languages, train_language))
    tables = finish_tables(tables, table, asked)
    # Before rows are held out: a copy of the test could be divided between the two.
    _check_leaks(protocol, tables)
    if hold_out:
        tables["train"], tables["tune"] = _hold_out(tables["train"], hold_out)
    fields: dict[str, Any] = {**input_facts(protocol, table, data, tables), **tables}
    return TrainedInputs(**fields, train_language=tables["train"][0]["lang"])


def _open_split(split: str, files: Sequence[str] | None, tables: Sequence[Table]) -> Table:
    """The table of the files, or else the first of the tables that have a split; the last is that of `--data`."""
    data_table = tables[-1]
    if files:
        return data_table.open(files, data_table.languages)
    for table in tables:
        if split in table.splits:
            return table

    fix = "--train FILE, or --columns split=NAME"
    if split == "dev":
        fix = "--tune FILE, or --hold-out COLUMN for a tenth of the training rows"
    raise XlsrError(f"{data_table.source_name} has no split '{split}'; use {fix}.")


def open_data(protocol: Protocol, data: DataOptions) -> Table:
    """The table of `--data`, as a protocol reads it."""
    columns = parse_columns(data.columns)
    for name in columns:
        if name not in protocol.columns:
            hint = did_you_mean(name, protocol.columns)
            raise XlsrError(f"--columns has '{name}', which protocol {protocol.name} does not read; {hint}")

    table = Table(
        protocol=protocol.name,
        required=protocol.required,
        optional=protocol.optional,
        nullable=protocol.nullable,
        columns=columns,
        where=parse_where(data.where),
        config=data.config,
        format=data.format,
    )
    return table.open(data.files, data.languages)


def narrowed(table: Table, required: tuple[str, ...], optional: tuple[str, ...]) -> Table:
    """The table with only some of the protocol's columns."""
    names = {*required, *optional}
    columns = {name: column for name, column in table.columns.items() if name in names}
    return replace(table, required=required, optional=optional, columns=columns)


def finished_fields(
    protocol: Protocol, table: Table, data: DataOptions, tables: Mapping[str, Rows], *, whole: Collection[str] = ()
) -> dict[str, Any]:
    """The fields of inputs: `finish_tables` by their names, and `input_facts`."""
    tables = finish_tables(tables, table, data, whole=whole)
    return {**input_facts(protocol, table, data, tables), **tables}


def input_facts(protocol: Protocol, table: Table, data: DataOptions, tables: Mapping[str, Rows]) -> dict[str, Any]:
    """What inputs of all kinds have: the name of the data, the split, hashes, and the numbers of skipped rows."""
    name = data.name or data_name(data.files)
    texts: dict[str, list[str]] = defaultdict(list)
    for role, rows in tables.items():
        if role == "rows":
            role = f"data/{name}"
        for row in rows:
            languages = "-".join(_languages(row))
            row_texts = [str(row.get(column, "")) for column in protocol.columns]
            texts[f"{role}/{languages}"] += row_texts

    hashes = {key: data_hash(values) for key, values in texts.items()}
    return {
        "name": name,
        "split": data.split,
        "hashes": hashes,
        "skipped": table.quarantine.counts,
    }


def read_one_table(table: Table, option: str, split: str | None) -> Rows:
    """The rows of a split of a source, which must be tables or Moses files."""
    count = len(table.files)
    if count > 1 and table.file_format in (None, "moses", "datasets") and (count > 2 or not table.paired):
        raise XlsrError(f"{option} must be tables, or two line-aligned files of pairs, got {count} files.")
    return table.split(split)


def finish_tables(
    tables: Mapping[str, Rows], table: Table, data: DataOptions, *, whole: Collection[str] = ()
) -> dict[str, Rows]:
    """The tables with their languages named alike, limited except for those that stay `whole`; warns of skipped rows."""
    tags_of_tables = [{tag for row in rows for tag in _languages(row)} for rows in tables.values()]
    codes = metric_languages(*tags_of_tables, asked=data.languages)

    finished: dict[str, Rows] = {}
    for name, rows in tables.items():
        finished[name] = [_with_codes(row, codes) for row in rows]
        if name not in whole and data.limit is not None:
            finished[name] = _limited(finished[name], data.limit)

    if table.quarantine.report():
        logger.warning("%s: %s", table.source_name, table.quarantine.report())
    return finished


def _languages(row: Row) -> list[str]:
    return [row[name] for name in LANGUAGE_COLUMNS if name in row]


def _with_codes(row: Row, codes: Mapping[str, str]) -> Row:
    return row | {name: codes[row[name]] for name in LANGUAGE_COLUMNS if name in row}


def _limited(rows: Rows, limit: int) -> Rows:
    """Rows drawn of each language (pair) and split."""
    key: Callable[[Row], tuple[int, ...]] = content_key
    if rows and "source_lang" in rows[0]:
        key = pair_key(reference_language(by_pair(rows)))
    elif rows and FILE_ROW in rows[0]:
        key = translation_key(rows, reference_language([(language,) for language in by_language(rows)]))
    return drawn_rows(rows, limit, group=_group_of, key=key)


def _group_of(row: Row) -> tuple[str, ...]:
    return (*_languages(row), str(row.get("split")))


def _hold_out(rows: Rows, column: str) -> tuple[Rows, Rows]:
    """Rows without and with those whose column has a crc32 divisible by ten: equal texts stay together."""
    remaining: Rows = []
    held_out: Rows = []
    for row in rows:
        text = str(row.get(column))
        is_held_out = zlib.crc32(text.encode()) % 10 == 0
        side = held_out if is_held_out else remaining
        side.append(row)

    if not remaining or not held_out:
        raise XlsrError(f"--hold-out {column} leaves all {len(rows)} rows on one side. Use another column, or --tune.")
    return remaining, held_out


def _check_leaks(protocol: Protocol, tables: Mapping[str, Rows]) -> None:
    """Refuses training or tuning texts that are exactly those of the test; warns where some are.

    Labels, languages and order do not matter: a copy of the test file under another name is the same data.
    """
    columns = [name for name in protocol.required if name != "label"]

    def texts_of(rows: Rows) -> list[tuple[str, ...]]:
        return [tuple(str(row[name]) for name in columns) for row in rows]

    tested = tables["rows"]
    tested_texts = texts_of(tested)
    texts_by_language = [set(texts_of(rows)) for rows in by_language(tested).values()]
    for option in ("train", "tune"):
        for language, rows in by_language(tables.get(option, [])).items():
            texts = set(texts_of(rows))
            if texts in texts_by_language:
                raise XlsrError(f"--{option} has the same texts in {language} as the rows to test on; use others.")

            shared = sum(text in texts for text in tested_texts)
            if shared:
                logger.warning("%d of %d tested rows are also in --%s in %s", shared, len(tested), option, language)
