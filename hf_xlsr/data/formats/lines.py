"""Opening plain and compressed files, and lines of bounded length out of them."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
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
    # Arrow's stream, unlike that of the zstandard package, notices a file that was cut off.
    ".zst": lambda path: pa.input_stream(path, compression="zstd"),
}
COMPRESSIONS = frozenset(_OPENERS)


def open_binary(path: Path) -> io.BufferedReader:
    """Opens a file for reading bytes, decompressed according to its suffix (`.gz`, `.bz2`, `.xz`, `.zst`).

    Raises:
        BrokenFile: The file cannot be opened.
    """
    opener = _OPENERS.get(path.suffix.lower())
    try:
        return path.open("rb") if opener is None else io.BufferedReader(opener(str(path)), BLOCK)
    except READ_ERRORS as error:
        raise BrokenFile(cause(error)) from error


def cause(error: Exception) -> str:
    """The first line of an error of the layers below, without a full stop."""
    text = (getattr(error, "strerror", None) or str(error)).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")


def iter_lines(file: BinaryIO) -> Iterator[bytes]:
    r"""The lines of a file, split at `\n` only and without it; a byte order mark at the start is dropped.

    An over-long line is cut to `MAX_LINE + 1` bytes, which `decode` refuses; the rest of it is passed over in blocks.

    Raises:
        BrokenFile: The file cannot be read to its end, or is UTF-16.

    Example:
        >>> list(iter_lines(io.BytesIO(b"one\ntwo")))
        [b'one', b'two']
    """
    first = True
    try:
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
    except READ_ERRORS as error:
        raise BrokenFile(cause(error)) from error


def decode(line: bytes) -> str:
    """The text of a line.

    Raises:
        BadLine: It is over-long, holds a NUL character or is not UTF-8.
    """
    if len(line) > MAX_LINE:
        raise BadLine("over-long line")
    if b"\0" in line:
        raise BadLine("NUL character")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise BadLine("invalid UTF-8") from None
