"""Parquet files, and datasets: local folders and ids on the Hub."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import TranslationVariableLanguages

from hf_xlsr.data.columns import flat_names, selected, split_name
from hf_xlsr.data.formats.dataset_folders import open_dataset
from hf_xlsr.data.formats.input_file import InputFile, Record
from hf_xlsr.data.formats.lines import read_errors
from hf_xlsr.data.formats.parquet_files import ParquetProcess
from hf_xlsr.utils.errors import XlsrError

DATASET_ERRORS = (Exception,)  # of networks, archives and formats, which have no common base


def read_parquet(file: InputFile) -> Iterator[Record]:
    """The rows of a Parquet file; only the columns that are needed are read, in a process of limited memory."""
    with ParquetProcess(file.paths[0]) as table:
        columns = file.resolve(flat_names(_fields(table.schema())))
        wanted = list(dict.fromkeys(columns.values()))
        records = chain.from_iterable(map(_records, table.batches(wanted)))
        for number, record in enumerate(records, 1):
            if record is None:
                file.reject(number, "invalid UTF-8", "")
            else:
                yield number, selected(record, columns), None


def _fields(schema: Any) -> dict[str, Any]:
    """Column names of an Arrow schema or struct, nested ones as dictionaries."""
    return {field.name: _fields(field.type) if pa.types.is_struct(field.type) else None for field in schema}


def _records(batch: Any) -> Iterator[dict[str, Any] | None]:
    """The rows of a batch; None for one whose text is not UTF-8."""
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:
        if batch.num_rows == 1:
            yield None
            return
        for row in range(batch.num_rows):
            yield from _records(batch.slice(row, 1))


def read_datasets(file: InputFile) -> Iterator[Record]:
    """The rows of a dataset, streamed."""
    data = _choose_split(open_dataset(file.paths[0], file.config), file).with_format(None)
    names = _column_names(data)
    if not names:
        return

    columns = file.resolve(names)
    if data.features is not None:
        # Of a nested column, all of it.
        wanted = {name for path in columns.values() for name in data.features if f"{path}.".startswith(f"{name}.")}
        data = data.select_columns(list(wanted))
    for number, record in enumerate(_guarded(iter(data), DATASET_ERRORS), 1):
        yield number, selected(record, columns), None


def _column_names(data: Any) -> list[str]:
    """The dotted paths of all columns of a dataset; where it does not name them, those of its first row."""
    if data.features:
        names = list(data.features.flatten())
        for name, feature in data.features.items():
            if isinstance(feature, TranslationVariableLanguages):
                names += [f"{name}.{language}" for language in feature.languages or ()]
        return names
    return flat_names(next(_guarded(iter(data), DATASET_ERRORS), {}))


def _guarded(items: Iterator[Any], errors: tuple[type[Exception], ...]) -> Iterator[Any]:
    """The items; errors of their libraries become `BrokenFile`."""
    while True:
        with read_errors(errors):
            item = next(items, None)
        if item is None:
            return
        yield item


def dataset_splits(path: str, config: str | None = None) -> list[str]:
    """Names of the splits of a dataset; empty where it has none."""
    data = open_dataset(Path(path), config)
    return sorted(data) if isinstance(data, dict) else []


def _choose_split(data: Any, file: InputFile) -> Any:
    """The split that the caller names; else the default one, or the only one unless it is that for training."""
    splits = data if isinstance(data, dict) else {}
    if file.split is None:
        if not isinstance(data, dict):
            return data
        if len(splits) == 1 and "train" not in splits:
            return next(iter(splits.values()))

    wanted = file.split or file.default_split
    # `dev` finds `validation`, and the other way round.
    if wanted in splits:
        return splits[wanted]
    for name, rows in splits.items():
        if split_name(name) == split_name(wanted):
            return rows

    raise XlsrError(f"{file.name} has no split '{wanted}'; its splits are {', '.join(sorted(splits)) or 'none'}.")
