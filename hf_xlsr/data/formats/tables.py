"""Parquet files, and datasets: local folders and ids on the Hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hf_xlsr.data.columns import column_value, flat_names, split_name
from hf_xlsr.data.formats.input_file import InputFile, Record
from hf_xlsr.data.formats.lines import READ_ERRORS, BrokenFile, read_errors
from hf_xlsr.utils.errors import XlsrError

BATCH = 1024  # rows
LARGE_COLUMN = 1 << 28  # bytes
MOST_EXPANSION = 500
ARROW_ERRORS = (pa.ArrowException, UnicodeDecodeError, *READ_ERRORS)
DATASET_ERRORS = (Exception,)  # of networks, archives and formats, which have no common base


def read_parquet(file: InputFile) -> Iterator[Record]:
    """The rows of a Parquet file; only the columns that are needed are read."""
    with read_errors(ARROW_ERRORS):  # with a buffer, Arrow does not read whole column chunks
        table = pq.ParquetFile(file.paths[0], buffer_size=1 << 20, pre_buffer=False)
    with table:
        with read_errors(ARROW_ERRORS):
            columns = file.resolve(flat_names(_fields(table.schema_arrow)))
            wanted = list(dict.fromkeys(columns.values()))
            _check_expansion(table.metadata, wanted)

        batches = _guarded(table.iter_batches(BATCH, columns=wanted, use_threads=False), ARROW_ERRORS)
        for number, record in enumerate(chain.from_iterable(map(_records, batches)), 1):
            if record is None:
                file.reject(number, "invalid UTF-8", "")
            else:
                yield number, _selected(record, columns), None


def _selected(record: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The values of a record under our names."""
    return {name: column_value(record, column) for name, column in columns.items()}


def _check_expansion(metadata: Any, wanted: Sequence[str]) -> None:
    """Arrow reads a page of a column at once; one of a few kilobytes may expand to gigabytes."""
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        if row_group.total_byte_size <= LARGE_COLUMN:
            continue  # Arrow ends the process where it describes columns of a damaged file

        for column in map(row_group.column, range(row_group.num_columns)):
            size = column.total_uncompressed_size
            is_read = any(f"{column.path_in_schema}.".startswith(f"{name}.") for name in wanted)
            if is_read and size > LARGE_COLUMN and size > MOST_EXPANSION * column.total_compressed_size:
                raise BrokenFile(f"its row group {group} expands {MOST_EXPANSION:,} times, to {size:,} bytes")


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
    data = _choose_split(_load(file.paths[0], file.config), file).with_format(None)
    names = _column_names(data)
    if not names:
        return

    columns = file.resolve(names)
    if data.features is not None:
        paths = tuple(f"{path}." for path in columns.values())
        prefixes = [name for name in data.features if any(path.startswith(f"{name}.") for path in paths)]
        data = data.select_columns(prefixes)
    for number, record in enumerate(_guarded(iter(data), DATASET_ERRORS), 1):
        yield number, _selected(record, columns), None


def _column_names(data: Any) -> list[str]:
    """The dotted paths of all columns of a dataset; where it does not name them, those of its first row."""
    if data.features:
        return list(data.features.flatten())
    return flat_names(next(_guarded(iter(data), DATASET_ERRORS), {}))


def _guarded(items: Iterator[Any], errors: tuple[type[Exception], ...]) -> Iterator[Any]:
    """The items; errors of their libraries become `BrokenFile`."""
    while True:
        with read_errors(errors):
            item = next(items, None)
        if item is None:
            return
        yield item


def _load(path: Path, config: str | None) -> Any:
    import datasets

    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        return datasets.load_from_disk(path.as_posix())
    return datasets.load_dataset(path.as_posix(), name=config, streaming=True)


def dataset_splits(path: str, config: str | None = None) -> list[str]:
    """Names of the splits of a dataset; empty where it has none."""
    data = _load(Path(path), config)
    return sorted(data) if isinstance(data, dict) else []


def _choose_split(data: Any, file: InputFile) -> Any:
    if not isinstance(data, dict):
        data = {file.default_split if file.split is None else "": data}  # a named split is not found

    # `dev` finds `validation`, and the other way round.
    names = {split_name(name): name for name in data} | {name: name for name in data}
    wanted = file.split or file.default_split
    name = names.get(wanted) or names.get(split_name(wanted))
    if name is None and file.split is None and len(data) == 1 and "train" not in data:
        name = next(iter(data))
    if name is None:
        raise XlsrError(f"{file.name} has no split '{wanted}'; its splits are {', '.join(sorted(data)) or 'none'}.")
    return data[name]
