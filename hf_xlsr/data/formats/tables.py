"""Parquet files, and data sets of the `datasets` library: local folders and ids on the Hub."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hf_xlsr.data.columns import column_value, flat_names
from hf_xlsr.data.formats.lines import READ_ERRORS, cause
from hf_xlsr.data.formats.source import BrokenFile, Record, Source
from hf_xlsr.data.splits import split_name
from hf_xlsr.utils.errors import XlsrError, nearest

BATCH = 1024  # rows
ARROW_ERRORS = (pa.ArrowException, *READ_ERRORS)


def read_parquet(source: Source) -> Iterator[Record]:
    """The rows of a Parquet file; only the columns that are needed are read."""
    try:
        # A buffer makes Arrow read column chunks piece by piece rather than whole.
        file = pq.ParquetFile(source.paths[0], buffer_size=1 << 20, pre_buffer=False)
    except ARROW_ERRORS as error:
        raise BrokenFile(cause(error)) from error
    with file:
        names = flat_names(_fields(file.schema_arrow))
        chosen = source.resolve(names)
        batches = file.iter_batches(BATCH, columns=list(dict.fromkeys(chosen.values())), use_threads=False)
        number = 0
        while True:
            try:
                batch = next(batches, None)
            except ARROW_ERRORS as error:
                raise BrokenFile(cause(error)) from error
            if batch is None:
                return
            for record in _records(batch):
                number += 1
                if record is None:
                    source.reject(number, "invalid UTF-8", "")
                    continue
                yield number, {ours: column_value(record, theirs) for ours, theirs in chosen.items()}, None


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
    """The rows of a data set, streamed."""
    data = _choose_split(_load(source), source).with_format(None)
    features = data.features
    rows: Iterator[dict[str, Any]] = iter(data)
    if features is None:
        head = _next(rows)
        names = [] if head is None else flat_names(head)
        rows = iter(data)
    else:
        names = list(features.flatten())
    if not names:
        return
    chosen = source.resolve(names)
    if features is not None:
        wanted = [
            name for name in features if any(path == name or path.startswith(f"{name}.") for path in chosen.values())
        ]
        rows = iter(data.select_columns(wanted))
    number = 0
    while (record := _next(rows)) is not None:
        number += 1
        yield number, {ours: column_value(record, theirs) for ours, theirs in chosen.items()}, None


def _next(rows: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return next(rows, None)
    except Exception as error:  # network, archive and format errors of the libraries below have no common base
        raise BrokenFile(cause(error)) from error


def _load(source: Source) -> Any:
    import datasets

    path = source.paths[0]
    try:
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            return datasets.load_from_disk(path.as_posix())
        return datasets.load_dataset(path.as_posix(), name=source.config, streaming=True)
    except Exception as error:
        if path.is_dir():
            raise XlsrError(f"the folder {path} cannot be opened as a data set ({cause(error)}).") from error
        raise XlsrError(
            f"'{source.name}' is no file or folder here and cannot be opened as a data set of the Hub ({cause(error)}); "
            "offline, save it on a connected machine with save_to_disk and give the folder."
        ) from error


def _choose_split(data: Any, source: Source) -> Any:
    if not isinstance(data, dict):
        if source.split is not None:
            raise XlsrError(f"{source.name} has no splits, but split is '{source.split}'; leave it out.")
        return data
    # `dev` finds `validation`, whichever of the two names is asked for.
    known = {split_name(name): name for name in data} | {name: name for name in data}
    if source.split is not None:
        found = known.get(source.split) or known.get(split_name(source.split))
        if found is None:
            raise XlsrError(f"{source.name} has no split '{source.split}'; {nearest(source.split, data)}")
        return data[found]
    found = known.get(source.default_split) or known.get(split_name(source.default_split))
    if found is None and (len(data) > 1 or "train" in data):
        raise XlsrError(
            f"{source.name} has no split '{source.default_split}'; give split, one of {', '.join(sorted(data))}."
        )
    return data[found or next(iter(data))]
