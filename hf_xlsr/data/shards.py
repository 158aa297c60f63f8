"""Shards of rows as Arrow files: clean ones in one file, tokenised ones in a file each until all are there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from datasets import Features

from hf_xlsr.utils.files import atomic_write, write_json

SHARD_ROWS = 20_000
# Rows that are tokenised and stored together.
BATCH_ROWS = 1000


class Encoder(Protocol):
    """Makes columns of token ids from columns of text; sent to each process that prepares data."""

    counts: Any  # see `TokenCounts`

    def features(self) -> Features:
        """The columns that it makes."""
        ...

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, Any]:
        """The columns of a batch."""
        ...


def store_rows(rows: Iterable[Mapping[str, Any]], features: Features, path: Path) -> Iterator[int]:
    """Writes shards of rows to an Arrow file, one record batch each, and yields the number of each."""
    stream, number = iter(rows), -1
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, features.arrow_schema) as writer:
        while shard := list(islice(stream, SHARD_ROWS)):
            columns = {name: [row[name] for row in shard] for name in features}
            writer.write_batch(pa.RecordBatch.from_pydict(columns, features.arrow_schema))
            number += 1
            yield number


def tokenize_shard(folder: Path, encode: Encoder, salt: str | None, number: int) -> None:
    """Tokenises one shard of `clean.arrow` into `shards/`, unless it is there with the same text.

    Args:
        folder: Of the preparation.
        encode: Has counted no row.
        salt: Changes with the encoder.
        number: Of the shard.
    """
    with pa.memory_map(str(folder / "clean.arrow")) as file:
        reader = pa.ipc.open_stream(file)
        for _ in range(number + 1):
            batch = reader.read_next_batch()
    digest = hashlib.sha256(str(salt).encode())
    for column in batch.columns:
        for buffer in column.buffers():
            digest.update(buffer or b"")
    target, marker = _shard_paths(folder, number)
    if marker.is_file() and read_json(marker)["content"] == digest.hexdigest():
        return
    target.parent.mkdir(exist_ok=True)
    encode.counts.clear()
    with atomic_write(target) as partial_file:
        _write_tokens(partial_file, encode, batch)
    write_json(marker, {"content": digest.hexdigest(), "counts": encode.counts.counts})


def _shard_paths(folder: Path, number: int) -> tuple[Path, Path]:
    return folder / "shards" / f"{number:06d}.arrow", folder / "shards" / f"{number:06d}.json"


def _write_tokens(path: Path, encode: Encoder, rows: pa.RecordBatch) -> None:
    schema = encode.features().arrow_schema
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for start in range(0, len(rows), BATCH_ROWS):
            columns = encode(rows.slice(start, BATCH_ROWS).to_pydict())
            writer.write_batch(pa.RecordBatch.from_pydict(columns, schema))


def join_shards(folder: Path, encode: Encoder, shards: int) -> None:
    """Joins the shards in order, and their counts: a dataset of thousands of files would need as many open files."""
    encode.counts.clear()
    with (
        atomic_write(folder / "rows.arrow") as partial_file,
        pa.OSFile(str(partial_file), "wb") as file,
        pa.ipc.new_stream(file, encode.features().arrow_schema) as writer,
    ):
        for number in range(shards):
            part, marker = _shard_paths(folder, number)
            encode.counts.add(read_json(marker)["counts"])
            with pa.memory_map(str(part)) as source:
                for batch in pa.ipc.open_stream(source):
                    writer.write_batch(batch)


def read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content
