"""Reading what a protocol is run on: the rows that a command names."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from hf_xlsr.data.columns import parse_columns
from hf_xlsr.evaluation.languages import metric_languages
from hf_xlsr.evaluation.protocol import LANGUAGE_COLUMNS, DataOptions, Inputs, Protocol, Rows
from hf_xlsr.evaluation.rows import by_language, by_pair
from hf_xlsr.evaluation.table import TableReader, data_name, is_table, parse_where
from hf_xlsr.utils.errors import XlsrError, did_you_mean

logger = logging.getLogger(__name__)


def open_inputs(protocol: Protocol, data: DataOptions) -> tuple[TableReader, Inputs]:
    """How the files of a command are read for a protocol, and inputs without rows, named after the data."""
    columns = parse_columns(data.columns)
    for name in columns:
        if name not in protocol.columns:
            hint = did_you_mean(name, protocol.columns)
            raise XlsrError(f"--columns has '{name}', which protocol {protocol.name} does not read; {hint}")
    reader = TableReader(
        protocol=protocol.name,
        required=protocol.required,
        optional=protocol.optional,
        nullable=protocol.nullable,
        columns=columns,
        where=parse_where(data.where),
        config=data.config,
    )
    return reader, Inputs(name=data.name or data_name(data.files), split=data.split)


def read_table(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> Inputs:
    """Rows of one table, of `tune`, and the candidates of `pool`."""
    reader, inputs = open_inputs(protocol, data)
    inputs.rows = {inputs.name: _rows(reader, "--data", data.files, data.split, data.languages)}
    if pool := options.get("pool"):
        inputs.pool = _rows(reader, "--pool", pool, None if is_table(pool) else data.split, data.languages)
    if tune := options.get("tune"):
        inputs.tune = _rows(reader, "--tune", tune, "dev", data.languages)
    finish_inputs(inputs, data, reader)
    if pool:
        present = by_pair(inputs.pool)
        alone = ["-".join(pair) for pair in by_pair(inputs.only) if not {pair, pair[::-1]} & present.keys()]
        if alone:
            logger.warning("--pool has no pairs in %s: only --data gives candidates there", ", ".join(alone))
    if tune:
        _check_leaks(inputs, protocol)
    return inputs


def read_tasks(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> Inputs:
    """Rows of each task: one file each, which its name or `NAME=FILE` assigns."""
    reader, inputs = open_inputs(protocol, data)
    data.refuse(protocol.name, "name", *(["split"] if protocol.tasks else []))
    for entry in data.files:
        task, equals, file = entry.partition("=")
        if not equals or Path(entry).exists():
            task, file = data_name([entry]), entry
        if task in inputs.rows:
            raise XlsrError(f"--data has two files of task '{task}'; distinguish them by NAME=FILE.")
        if not protocol.tasks:
            inputs.rows[task] = reader.open((file,), data.languages).split(data.split)
            continue
        kind = task.partition(".")[0]
        if kind not in protocol.tasks:
            hint = f"{did_you_mean(kind, protocol.tasks)} Name the file after its task, or use TASK=FILE."
            raise XlsrError(f"protocol {protocol.name} has no task '{task}'; {hint}")
        # Datasets distinguish splits by name; the rows of a file need a column.
        required = tuple(name for name in protocol.tasks[kind] if name != "split" or is_table((file,)))
        columns = {name: column for name, column in reader.columns.items() if name in (*required, *protocol.optional)}
        table = replace(reader, required=required, columns=columns).open((file,), data.languages)
        inputs.rows[task] = table.all_splits()
    return finish_inputs(inputs, data, reader)


def read_trained(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> Inputs:
    """Rows to test on, and those that a head is trained and chosen on in one language."""
    reader, inputs = open_inputs(protocol, data)
    train, tune, held = (options.get(name) for name in ("train", "tune", "hold_out"))
    language = options.get("train_language") or next(iter(data.languages), None)
    if language is None:
        raise XlsrError("--train-language is missing: the language that the head is trained in, e.g. en.")

    def learned(option: str, split: str, files: Sequence[str] | None, others: Iterable[Sequence[str]]) -> Rows:
        """Rows of a split, from `files` or else from the first of `others` that has this split."""
        found = files or next((other for other in others if split in reader.open(other, (language,)).splits), None)
        if not found:
            hint = "--hold-out COLUMN for a tenth of the training rows" if split == "dev" else "--columns split=NAME"
            raise XlsrError(f"{' '.join(data.files)} has no split '{split}'; use {option} FILE, or {hint}.")
        return _rows(reader, option, found, split, (language,))

    inputs.rows = {inputs.name: _rows(reader, "--data", data.files, data.split, data.languages)}
    inputs.train = learned("--train", "train", train, [data.files])
    if not held:
        inputs.tune = learned("--tune", "dev", tune, [train or data.files, data.files])
    finish_inputs(inputs, data, reader)
    inputs.train_language = inputs.train[0]["lang"]
    _check_leaks(inputs, protocol)  # before rows are held out: a copy of the test could be divided between the parts
    if held:
        inputs.train, inputs.tune = _hold_out(inputs.train, held)
    return inputs


def _rows(reader: TableReader, option: str, files: Sequence[str], split: str | None, languages: Sequence[str]) -> Rows:
    if len(files) > (2 if reader.paired else 1):
        most = "one table or two line-aligned files" if reader.paired else "one table"
        raise XlsrError(f"{option} must be {most}, got {len(files)} files.")
    return reader.open(files, languages).split(split)


def finish_inputs(inputs: Inputs, data: DataOptions, reader: TableReader) -> Inputs:
    """Names languages, limits rows and reports skipped rows."""
    parts = [*inputs.rows.values(), inputs.train, inputs.tune, inputs.pool, inputs.relevance]
    tags = {row[name] for row in chain(*parts) for name in LANGUAGE_COLUMNS if name in row}
    codes = metric_languages(tags)
    for rows in parts:
        counts: dict[tuple[str, ...], int] = {}
        kept = []
        for row in rows:
            named = {name: codes[row[name]] for name in LANGUAGE_COLUMNS if name in row}
            group = (*named.values(), str(row.get("split", "")))
            counts[group] = counts.get(group, 0) + 1
            # The pool stays whole: with fewer candidates retrieval is another, easier test.
            whole = rows is inputs.pool or rows is inputs.relevance
            if whole or data.limit is None or counts[group] <= data.limit:
                kept.append({**row, **named})
        rows[:] = kept
    inputs.skipped = reader.quarantine.counts
    if inputs.skipped:
        logger.warning("%s: %s", " ".join(data.files), reader.quarantine.report())
    return inputs


def _hold_out(rows: Rows, column: str) -> tuple[Rows, Rows]:
    """Rows without and with those whose column has a crc32 divisible by ten: equal texts stay together."""
    held = [zlib.crc32(str(row.get(column)).encode()) % 10 == 0 for row in rows]
    parts = [[row for row, out in zip(rows, held, strict=True) if out == wanted] for wanted in (False, True)]
    if not all(parts):
        known = ", ".join(rows[0])
        raise XlsrError(f"--hold-out {column} leaves all {len(rows)} rows on one side. Use --tune, or one of {known}.")
    return parts[0], parts[1]


def _check_leaks(inputs: Inputs, protocol: Protocol) -> None:
    """Refuses training or tuning texts that are exactly those of the test; warns where some are.

    Labels, languages and order do not matter: a copy of the test file under another name is the same data.
    """
    columns = [name for name in protocol.required if name != "label"]

    def texts(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
        return [tuple(str(row[name]) for name in columns) for row in rows]

    tested = {language: texts(rows) for language, rows in by_language(inputs.only).items()}
    for option, rows in (("--train", inputs.train), ("--tune", inputs.tune)):
        for language, group in by_language(rows).items():
            seen = set(texts(group))
            same = next((other for other, test in tested.items() if set(test) == seen), None)
            if same is not None:
                raise XlsrError(f"{option} has the same texts in {language} as the tested rows in {same}; use others.")
            if shared := sum(text in seen for test in tested.values() for text in test):
                total = sum(map(len, tested.values()))
                logger.warning("%d of %d tested rows are also in %s in %s", shared, total, option, language)
