"""Parquet files, each read by a process of limited memory: alone, or as the splits of a dataset."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from subprocess import PIPE
from typing import Any

import pyarrow as pa

from hf_xlsr.data.formats import parquet_child
from hf_xlsr.data.formats.lines import BrokenFile


class ParquetProcess(AbstractContextManager["ParquetProcess"]):
    """The process that reads a Parquet file, a path or an address of fsspec, see `parquet_child`."""

    def __init__(self, file: str | os.PathLike[str]) -> None:
        command = [sys.executable, parquet_child.__file__, os.fspath(file)]
        self._process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE)

    def schema(self) -> pa.Schema:
        """The columns of the file."""
        output: Any = self._process.stdout
        size = int.from_bytes(output.read(8), "little")
        schema = output.read(size)
        if not schema:
            raise self._failure()
        return pa.ipc.read_schema(pa.py_buffer(schema))

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of some columns."""
        requests: Any = self._process.stdin
        with suppress(BrokenPipeError), requests:
            requests.write(json.dumps(columns).encode())

        try:
            # A file without rows has no stream.
            yield from pa.ipc.open_stream(self._process.stdout)
        except pa.ArrowException as error:
            if self._process.wait():
                raise self._failure() from error
        if self._process.wait():
            raise self._failure()

    def _failure(self) -> BrokenFile:
        """What the process said at its end; nothing where the system ended it."""
        errors: Any = self._process.stderr
        messages = errors.read().decode("utf-8", "replace").strip().splitlines()
        self._process.wait()
        memory = f"reading it takes more than {parquet_child.MEMORY:,} bytes of memory"
        return BrokenFile(messages[-1].rstrip(".") if messages else memory)

    def __exit__(self, *error: object) -> None:
        with self._process:  # which closes the pipes
            self._process.kill()


def parquet_splits(files: Mapping[Any, Sequence[str]], features: Any = None) -> dict[str, Any]:
    """Streams of the rows of Parquet files by split; `features` are those of the card, by default of the first file."""
    from datasets import Features, IterableDataset

    splits = {}
    for split, split_files in files.items():
        if features is None:
            with ParquetProcess(split_files[0]) as table:
                features = Features.from_arrow_schema(table.schema())
        splits[str(split)] = IterableDataset.from_generator(
            parquet_rows, features=features, gen_kwargs={"files": list(split_files)}
        )
    return splits


def parquet_rows(files: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of Parquet files, one after the other."""
    for file in files:
        with ParquetProcess(file) as table:
            for batch in table.batches(table.schema().names):
                yield from batch.to_pylist()
