"""Reading what a protocol is run on: a class of inputs for each kind of data, and the function that reads it."""

from __future__ import annotations

import logging
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hf_xlsr.data.columns import parse_columns
from hf_xlsr.evaluation.languages import metric_languages
from hf_xlsr.evaluation.protocol import DataOptions, Inputs, Protocol, Rows
from hf_xlsr.evaluation.rows import by_language, by_pair
from hf_xlsr.evaluation.table import Row, TableReader, data_name, is_table, parse_where
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
        texts: dict[str, dict[str, None]] = {}
        for row in self.rows:
            for column, language_column in TEXT_COLUMNS.items():
                if column in row:
                    texts.setdefault(row[language_column], {})[row[column]] = None

        return {language: list(distinct) for language, distinct in texts.items()}


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
        languages: dict[str, dict[str, Rows]] = {}
        for task, rows in self.tasks.items():
            for language, group in by_language(rows).items():
                languages.setdefault(language, {})[task] = group

        return languages


def read_pairs(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> PairInputs:
    """Reads translation pairs, and the candidates of `pool`."""
    reader = open_reader(protocol, data)
    tables = {"rows": read_data(reader, data)}
    pool = options.get("pool")
    if pool:
        split = None if is_table(pool) else data.split
        tables["pool"] = read_one_table(reader, "--pool", pool, split, data.languages)

    # The pool stays whole: with fewer candidates retrieval is another, easier test.
    tables = finish_tables(tables, reader, data, whole=["pool"])
    inputs = PairInputs(**input_fields(protocol, reader, data, tables))
    if pool:
        pool_pairs = by_pair(inputs.pool)
        missing_pairs = [pair for pair in by_pair(inputs.rows) if not {pair, pair[::-1]} & pool_pairs.keys()]
        if missing_pairs:
            names = ", ".join(map("-".join, missing_pairs))
            logger.warning("--pool has no pairs in %s: only --data gives candidates there", names)
    return inputs


def read_rows(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> RowInputs:
    """Reads the rows of one table."""
    reader = open_reader(protocol, data)
    tables = finish_tables({"rows": read_data(reader, data)}, reader, data)
    return RowInputs(**input_fields(protocol, reader, data, tables))


def read_tuned(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> TunedInputs:
    """Reads the rows of one table, and those of `tune`."""
    reader = open_reader(protocol, data)
    tables = {"rows": read_data(reader, data)}
    if options.get("tune"):
        tables["tune"] = read_one_table(reader, "--tune", options["tune"], "dev", data.languages)

    tables = finish_tables(tables, reader, data)
    _check_leaks(protocol, tables)
    return TunedInputs(**input_fields(protocol, reader, data, tables))


def read_tasks(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> TaskInputs:
    """Reads rows of several tasks: one file each, which its name or `NAME=FILE` assigns."""
    reader = open_reader(protocol, data)
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

        if protocol.tasks:
            tables[task] = _read_task(protocol, reader, task, file, data.languages)
        else:
            tables[task] = reader.open((file,), data.languages).split(data.split)

    tables = finish_tables(tables, reader, data)
    roles = {f"data/{task}": rows for task, rows in tables.items()}
    return TaskInputs(**input_facts(protocol, reader, data, roles), tasks=tables)


def _read_task(protocol: Protocol, reader: TableReader, task: str, file: str, languages: Sequence[str]) -> Rows:
    """All splits of a task that has columns of its own."""
    kind = task.partition(".")[0]
    if kind not in protocol.tasks:
        hint = f"{did_you_mean(kind, protocol.tasks)} Name the file after its task, or use TASK=FILE."
        raise XlsrError(f"protocol {protocol.name} has no task '{task}'; {hint}")

    required = protocol.tasks[kind]
    if not is_table((file,)):  # datasets distinguish splits by name; the rows of a file need a column
        required = tuple(name for name in required if name != "split")
    return narrowed(reader, required, protocol.optional).open((file,), languages).all_splits()


def read_trained(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> TrainedInputs:
    """Reads rows to test on, and those that a head is trained and chosen on in one language."""
    reader = open_reader(protocol, data)
    train_language = options.get("train_language") or next(iter(data.languages), None)
    if train_language is None:
        raise XlsrError("--train-language is missing: the language that the head is trained in, e.g. en.")
    languages = (train_language,)
    hold_out = options.get("hold_out")

    tables = {"rows": read_data(reader, data)}
    candidates = [data.files]
    train_files = options.get("train") or _files_with_split("train", reader, languages, candidates)
    tables["train"] = read_one_table(reader, "--train", train_files, "train", languages)
    if not hold_out:
        candidates = [tuple(train_files), data.files]
        tune_files = options.get("tune") or _files_with_split("dev", reader, languages, candidates)
        tables["tune"] = read_one_table(reader, "--tune", tune_files, "dev", languages)

    tables = finish_tables(tables, reader, data)
    # Before rows are held out: a copy of the test could be divided between the two.
    _check_leaks(protocol, tables)
    if hold_out:
        tables["train"], tables["tune"] = _hold_out(tables["train"], hold_out)
    fields = input_fields(protocol, reader, data, tables)
    return TrainedInputs(**fields, train_language=tables["train"][0]["lang"])


def _files_with_split(
    split: str, reader: TableReader, languages: Sequence[str], candidates: Sequence[Sequence[str]]
) -> Sequence[str]:
    """The first of the candidates that have a split; the last are those of `--data`."""
    for files in candidates:
        if split in reader.open(files, languages).splits:
            return files
    fix = "--train FILE, or --columns split=NAME"
    if split == "dev":
        fix = "--tune FILE, or --hold-out COLUMN for a tenth of the training rows"
    raise XlsrError(f"{' '.join(candidates[-1])} has no split '{split}'; use {fix}.")


def open_reader(protocol: Protocol, data: DataOptions) -> TableReader:
    """How the files of a command are read for a protocol."""
    columns = parse_columns(data.columns)
    for name in columns:
        if name not in protocol.columns:
            hint = did_you_mean(name, protocol.columns)
            raise XlsrError(f"--columns has '{name}', which protocol {protocol.name} does not read; {hint}")

    return TableReader(
        protocol=protocol.name,
        required=protocol.required,
        optional=protocol.optional,
        nullable=protocol.nullable,
        columns=columns,
        where=parse_where(data.where),
        config=data.config,
    )


def narrowed(reader: TableReader, required: tuple[str, ...], optional: tuple[str, ...]) -> TableReader:
    """The reader of a table with only some of the protocol's columns."""
    columns = {name: column for name, column in reader.columns.items() if name in (*required, *optional)}
    return replace(reader, required=required, optional=optional, columns=columns)


def input_fields(
    protocol: Protocol, reader: TableReader, data: DataOptions, tables: Mapping[str, Rows]
) -> dict[str, Any]:
    """The tables by the names of their fields, and what inputs of all kinds have, see `input_facts`."""
    return {**input_facts(protocol, reader, data, tables), **tables}


def input_facts(
    protocol: Protocol, reader: TableReader, data: DataOptions, tables: Mapping[str, Rows]
) -> dict[str, Any]:
    """What inputs of all kinds have: the name of the data, the split, hashes, and the numbers of skipped rows."""
    name = data.name or data_name(data.files)
    texts: dict[str, list[str]] = {}
    for table, rows in tables.items():
        role = f"data/{name}" if table == "rows" else table
        for row in rows:
            languages = "-".join(row[column] for column in LANGUAGE_COLUMNS if column in row)
            row_texts = [str(row.get(column, "")) for column in protocol.columns]
            texts.setdefault(f"{role}/{languages}", []).extend(row_texts)

    hashes = {key: data_hash(values) for key, values in texts.items()}
    return {"name": name, "split": data.split, "hashes": hashes, "skipped": reader.quarantine.counts}


def read_data(reader: TableReader, data: DataOptions) -> Rows:
    """The rows of `--data`, one table."""
    return read_one_table(reader, "--data", data.files, data.split, data.languages)


def read_one_table(
    reader: TableReader, option: str, files: Sequence[str], split: str | None, languages: Sequence[str]
) -> Rows:
    if len(files) > (2 if reader.paired else 1):
        expected = "one table or two line-aligned files" if reader.paired else "one table"
        raise XlsrError(f"{option} must be {expected}, got {len(files)} files.")
    return reader.open(files, languages).split(split)


def finish_tables(
    tables: Mapping[str, Rows], reader: TableReader, data: DataOptions, *, whole: Collection[str] = ()
) -> dict[str, Rows]:
    """The tables with their languages named alike, limited except for those that stay `whole`; warns of skipped rows."""
    tags: set[str] = set()
    for rows in tables.values():
        for row in rows:
            tags.update(row[name] for name in LANGUAGE_COLUMNS if name in row)
    codes = metric_languages(tags)

    finished: dict[str, Rows] = {}
    for name, rows in tables.items():
        finished[name] = [_with_codes(row, codes) for row in rows]
        if name not in whole and data.limit is not None:
            finished[name] = _limited(finished[name], data.limit)

    if reader.quarantine.counts:
        logger.warning("%s: %s", " ".join(data.files), reader.quarantine.report())
    return finished


def _with_codes(row: Row, codes: Mapping[str, str]) -> Row:
    return row | {name: codes[row[name]] for name in LANGUAGE_COLUMNS if name in row}


def _limited(rows: Rows, limit: int) -> Rows:
    """The first rows of each language (pair) and split."""
    counts: Counter[tuple[str, ...]] = Counter()
    first_rows = []
    for row in rows:
        group = tuple(str(row.get(name, "")) for name in (*LANGUAGE_COLUMNS, "split"))
        counts[group] += 1
        if counts[group] <= limit:
            first_rows.append(row)
    return first_rows


def _hold_out(rows: Rows, column: str) -> tuple[Rows, Rows]:
    """Rows without and with those whose column has a crc32 divisible by ten: equal texts stay together."""
    remaining: Rows = []
    held_out: Rows = []
    for row in rows:
        is_held_out = zlib.crc32(str(row.get(column)).encode()) % 10 == 0
        side = held_out if is_held_out else remaining
        side.append(row)

    if not remaining or not held_out:
        columns = ", ".join(rows[0])
        raise XlsrError(
            f"--hold-out {column} leaves all {len(rows)} rows on one side. Use --tune, or one of {columns}."
        )
    return remaining, held_out


def _check_leaks(protocol: Protocol, tables: Mapping[str, Rows]) -> None:
    """Refuses training or tuning texts that are exactly those of the test; warns where some are.

    Labels, languages and order do not matter: a copy of the test file under another name is the same data.
    """
    columns = [name for name in protocol.required if name != "label"]

    def text_of(row: Row) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in columns)

    tested = tables["rows"]
    tested_texts = {language: set(map(text_of, rows)) for language, rows in by_language(tested).items()}
    for option in ("train", "tune"):
        for language, rows in by_language(tables.get(option, [])).items():
            texts = set(map(text_of, rows))
            for tested_language, texts_of_language in tested_texts.items():
                if texts == texts_of_language:
                    tested_rows = f"the tested rows in {tested_language}"
                    raise XlsrError(f"--{option} has the same texts in {language} as {tested_rows}; use others.")

            shared = sum(text_of(row) in texts for row in tested)
            if shared:
                logger.warning("%d of %d tested rows are also in --%s in %s", shared, len(tested), option, language)
