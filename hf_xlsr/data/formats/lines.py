"""Plain and compressed files, and their lines of bounded length."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from hf_xlsr.data.formats.source import BadLine, BrokenFile

MAX_LINE = 1 << 20  # bytes
BLOCK = 1 << 16
READ_ERRORS = (EOFError, OSError, zlib.error, lzma.LZMAError)

_OPENERS: dict[str, Callable[[str], Any]] = {
    ".gz": lambda path: gzip.open(path, "rb"),
    ".bz2": lambda path: bz2.open(path, "rb"),
    ".xz": lambda path: lzma.open(path, "rb"),
    # Arrow's stream, unlike that of the zstandard package, detects a truncated file.
    ".zst": lambda path: pa.input_stream(path, compression="zstd"),
}
COMPRESSIONS = frozenset(_OPENERS)


def open_binary(path: Path) -> io.BufferedReader:
    """Opens a file for reading bytes, decompressed according to its suffix (`.gz`, `.bz2`, `.xz`, `.zst`)."""
    opener = _OPENERS.get(path.suffix.lower())
    with read_errors():
        return path.open("rb") if opener is None else io.BufferedReader(opener(str(path)), BLOCK)


@contextmanager
def read_errors(errors: tuple[type[Exception], ...] = READ_ERRORS) -> Iterator[None]:
    """Converts errors of libraries to `BrokenFile`."""
    try:
        yield
    except errors as error:
        raise BrokenFile(cause(error)) from error


def cause(error: Exception) -> str:
    """The first line of a library's error, without a full stop."""
    text = (getattr(error, "strerror", None) or str(error)).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")


def iter_lines(file: BinaryIO) -> Iterator[bytes]:
    r"""The lines of a file, split at `\n` only and without it; a byte order mark at the start is dropped.

    An over-long line is truncated to `MAX_LINE + 1` bytes, which `decode` rejects.
    """
    first = True
    with read_errors():
        while line := file.readline(MAX_LINE + 1):
            if first:
                if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    raise BrokenFile("it is UTF-16, not UTF-8")
                if line.startswith(codecs.BOM_UTF8):
                    line = line[3:] + (b"" if line.endswith(b"\n") else file.readline(3))
                first = False
            if line.endswith(b"\n"):
                yield line[:-1]
                continue
            yield line
            if len(line) > MAX_LINE:
                while (rest := file.readline(BLOCK)) and not rest.endswith(b"\n"):
                    pass


def decode(line: bytes) -> str:
    """The text of a line; `BadLine` if it is over-long, has a NUL character or is not UTF-8."""
    reason = "over-long line" if len(line) > MAX_LINE else "NUL character" if b"\0" in line else "invalid UTF-8"
    if reason == "invalid UTF-8":
        with suppress(UnicodeDecodeError):
            return line.decode("utf-8")
    raise BadLine(reason)
