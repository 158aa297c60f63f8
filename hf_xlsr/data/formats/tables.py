"""Parquet files, and datasets: local folders and ids on the Hub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hf_xlsr.data.columns import column_value, flat_names, split_name
from hf_xlsr.data.formats.source import READ_ERRORS, BrokenFile, Record, Source, read_errors
from hf_xlsr.utils.errors import XlsrError

BATCH = 1024  # rows
LARGE_COLUMN, MOST_EXPANSION = 1 << 28, 500
ARROW_ERRORS = (pa.ArrowException, UnicodeDecodeError, *READ_ERRORS)


def read_parquet(source: Source) -> Iterator[Record]:
    """The rows of a Parquet file; only the columns that are needed are read."""
    with read_errors(ARROW_ERRORS):  # with a buffer, Arrow does not read whole column chunks
        file = pq.ParquetFile(source.paths[0], buffer_size=1 << 20, pre_buffer=False)
    with file:
        with read_errors(ARROW_ERRORS):
            names = flat_names(_fields(file.schema_arrow))
            chosen = source.resolve(names)
            wanted = list(dict.fromkeys(chosen.values()))
            _check_expansion(file.metadata, wanted)
        batches = _guarded(file.iter_batches(BATCH, columns=wanted, use_threads=False), ARROW_ERRORS)
        for number, record in enumerate(chain.from_iterable(map(_records, batches)), 1):
            if record is None:
                source.reject(number, "invalid UTF-8", "")
            else:
                yield number, {ours: column_value(record, theirs) for ours, theirs in chosen.items()}, None


def _check_expansion(metadata: Any, wanted: Sequence[str]) -> None:
    """Arrow reads a page of a column at once; one of a few kilobytes may expand to gigabytes."""
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        if row_group.total_byte_size <= LARGE_COLUMN:
            continue  # Arrow ends the process where it describes columns of a damaged file
        for column in map(row_group.column, range(row_group.num_columns)):
            size = column.total_uncompressed_size
            read = any(f"{column.path_in_schema}.".startswith(f"{name}.") for name in wanted)
            if read and size > LARGE_COLUMN and size > MOST_EXPANSION * column.total_compressed_size:
                raise BrokenFile(f"its row group {group} expands {MOST_EXPANSION:,} times, to {size:,} bytes")


def _fields(schema: Any) -> dict[str, Any]:
    """Column names of an Arrow schema or struct, nested ones as dictionaries."""
    return {field.name: _fields(field.type) if pa.types.is_struct(field.type) else None for field in schema}


def _records(batch: Any) -> Iterator[dict[str, Any] | None]:
    """The rows of a batch; None for one whose text is not UTF-8."""
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:
        for row in range(batch.num_rows):
            try:
                yield batch.slice(row, 1).to_pylist()[0]
            except UnicodeDecodeError:
                yield None


def read_datasets(source: Source) -> Iterator[Record]:
    """The rows of a dataset, streamed."""
    data = _choose_split(_load(source.paths[0], source.config), source).with_format(None)
    # Network, archive and format errors have no common base.
    names = (
        list(data.features.flatten()) if data.features else flat_names(next(_guarded(iter(data), (Exception,)), {}))
    )
    if not names:
        return
    chosen = source.resolve(names)
    if data.features is not None:
        paths = [f"{path}." for path in chosen.values()]
        data = data.select_columns(
            [name for name in data.features if any(path.startswith(f"{name}.") for path in paths)]
        )
    for number, record in enumerate(_guarded(iter(data), (Exception,)), 1):
        yield number, {ours: column_value(record, theirs) for ours, theirs in chosen.items()}, None


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


def _choose_split(data: Any, source: Source) -> Any:
    if not isinstance(data, dict):
        data = {source.default_split if source.split is None else "": data}  # a named split is not found
    # `dev` finds `validation`, and the other way round.
    known = {split_name(name): name for name in data} | {name: name for name in data}
    wanted = source.split or source.default_split
    found = known.get(wanted) or known.get(split_name(wanted))
    if found is None and source.split is None and len(data) == 1 and "train" not in data:
        found = next(iter(data))
    if found is None:
        raise XlsrError(f"{source.name} has no split '{wanted}'; its splits are {', '.join(sorted(data)) or 'none'}.")
    return data[found]
