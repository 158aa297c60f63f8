"""What the tests of the readers share: writers by hand, and reading with a side file."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyarrow as pa
import pytest
import zstandard

from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.utils.errors import XlsrError


def lz4(data: bytes) -> bytes:
    buffer = pa.BufferOutputStream()
    with pa.CompressedOutputStream(buffer, "lz4") as stream:
        stream.write(data)
    return bytes(buffer.getvalue())


def zstd_long(data: bytes, window_log: int) -> bytes:
    """What `zstd --long=LOG` writes for a stream."""
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return frame.compress(data) + frame.flush()


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
    ".lz4": lz4,
    ".ZST": lambda data: zstd_long(data, 30),
}
ROWS = [{"source": "good day", "target": "bonjour"}, {"source": 'the "big" one', "target": "le  «grand»\u2028ici "}]


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def fails(path, *parts: str, **options) -> str:
    """Reads to the end, expects one sentence that holds the parts."""
    with pytest.raises(XlsrError) as error:
        list(read_rows(path, **options))
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message
    return message


def read_with_side_file(folder: Path, path, **options) -> tuple[list[dict], list[tuple[int, str]], list[dict]]:
    side = folder / "side" / "bad.jsonl"
    with Quarantine(side) as quarantine:
        rows = list(read_rows(path, quarantine=quarantine, **options))
    lines = side.read_text(encoding="utf-8").split("\n")[:-1] if side.exists() else []
    bad = [json.loads(line) for line in lines]
    assert len(bad) == quarantine.total
    return rows, [(entry["line"], entry["reason"]) for entry in bad], bad


def as_tsv(rows):
    return "source\ttarget\n" + "".join(f"{row['source']}\t{row['target']}\n" for row in rows)


def as_csv(rows):
    file = io.StringIO()
    writer = csv.DictWriter(file, ["source", "target"])
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def as_jsonl(rows):
    return "".join(json.dumps(row, ensure_ascii=bool(i % 2)) + "\n" for i, row in enumerate(rows))


def as_tmx(rows):
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{escape(row["source"])}</seg></tuv>'
        f'<tuv xml:lang="fr"><seg>{escape(row["target"])}</seg></tuv></tu>\n'
        for row in rows
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4"><header/><body>\n{units}</body></tmx>\n'


WRITERS: dict[str, Callable[..., Any]] = {"tsv": as_tsv, "csv": as_csv, "jsonl": as_jsonl, "tmx": as_tmx}
