"""Reads a Parquet file in a process whose memory is limited, and sends its rows to the process that started it.

A page of a few kilobytes may expand to gigabytes, whatever the file says about itself, and Arrow has no limit of its
own. `python parquet_child.py FILE` writes the schema, reads the names of columns as a line of JSON, and writes these
columns as a stream of Arrow. FILE is a path or an address of fsspec, such as `hf://...`.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # this folder, whose modules are no programs

import json
from contextlib import suppress
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 1024  # of a batch
BATCH_BYTES = 1 << 28
MEMORY = 1 << 31  # bytes, besides what the process takes at its start


def limit_memory() -> None:
    """Limits this process to `MEMORY`, where the system can."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            pages_at_start = int(file.read().split()[0])
        most = pages_at_start * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def shares_values(kind: pa.DataType) -> bool:
    """Whether rows of a type may share a value, so that they are larger as Python objects than in Arrow."""
    is_plain = not (
        pa.types.is_dictionary(kind)
        or pa.types.is_run_end_encoded(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary_view(kind)
    )
    return not is_plain or any(shares_values(kind.field(number).type) for number in range(kind.num_fields))


def send_rows(path: str, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers one request for columns of a file."""
    file = path
    if "://" in path:
        import fsspec

        file = fsspec.open(path).open()
    table = pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)  # without a buffer, Arrow reads whole columns
    schema = table.schema_arrow.serialize().to_pybytes()
    answers.write(len(schema).to_bytes(8, "little") + schema)
    answers.flush()

    columns = json.loads(requests.readline() or "[]")
    stream = None
    for batch in table.iter_batches(ROWS, columns=columns, use_threads=False):
        if batch.nbytes > BATCH_BYTES:
            raise MemoryError(f"{batch.num_rows:,} of its rows take more than {BATCH_BYTES:,} bytes")
        if any(map(shares_values, batch.schema.types)):
            batch.to_pylist()  # fails here, not in the process that has no limit
        if stream is None:
            stream = pa.ipc.new_stream(answers, batch.schema)
        stream.write_batch(batch)
    if stream is not None:
        stream.close()


def main() -> None:
    """Sends the rows; an error ends the process with a message of one line."""
    limit_memory()
    try:
        send_rows(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:
        message = str(error).strip()
        sys.exit(message.splitlines()[0] if message else 1)  # Python's own MemoryError says nothing


if __name__ == "__main__":
    main()
