"""Plain and compressed files, as bytes and as lines."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

SGM = (".sgm", ".sgml")
MAX_LINE = 1 << 20  # bytes
BLOCK = 1 << 16
XZ_MEMORY = 1 << 28  # bytes; `xz -9` needs a quarter of it
ZSTD_MEMORY = 1 << 31  # bytes; `zstd --ultra --long=31` needs all of it
ZSTD_BLOCK = 1 << 10  # at most 32 megabytes when decompressed
ZSTD_HEADER = 18
ARROW_WINDOW = 1 << 27
READ_ERRORS = (EOFError, OSError, zlib.error, lzma.LZMAError)


class _XzStream(io.RawIOBase):
    """A file that xz decompresses in bounded memory. `lzma.open` takes as much as the header asks for."""

    def __init__(self, path: str) -> None:
        self._file = io.FileIO(path)
        self._decompressor = lzma.LZMADecompressor(memlimit=XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._next(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def _next(self, size: int) -> bytes:
        """The next bytes, at most `size`; none at the end."""
        content = b""
        while not content:
            compressed = b""
            if self._decompressor.eof:  # another stream may follow, after zeros
                compressed = self._decompressor.unused_data or self._file.read(BLOCK)
                if not compressed:
                    return b""
                compressed = compressed.lstrip(b"\0")
                self._decompressor = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
            elif self._decompressor.needs_input:
                compressed = self._file.read(BLOCK)
                if not compressed:
                    raise EOFError("it ends before the end of its stream")
            content = self._decompressor.decompress(compressed, size)
        return content

    def close(self) -> None:
        self._file.close()
        super().close()


class _ZstdStream(io.RawIOBase):
    """A file that zstandard decompresses with windows of up to `ZSTD_MEMORY`; its own stream hides a truncated file."""

    def __init__(self, path: str) -> None:
        import zstandard

        self._file = io.FileIO(path)
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_MEMORY)
        self._errors = (zstandard.ZstdError, MemoryError)
        self._frame: Any = None
        self._content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._content:
            is_between_frames = self._frame is None or self._frame.eof
            compressed = self._frame.unused_data if self._frame is not None else b""
            compressed = compressed or self._file.read(ZSTD_BLOCK)
            if not compressed:
                if is_between_frames:
                    return 0
                raise EOFError("it ends before the end of its stream")

            try:
                if is_between_frames:
                    self._frame = self._decompressor.decompressobj()
                self._content = memoryview(self._frame.decompress(compressed))
            except self._errors as error:
                raise OSError(str(error)) from error

        size = min(len(buffer), len(self._content))
        buffer[:size] = self._content[:size]
        self._content = self._content[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def _open_zstd(path: str) -> Any:
    """Arrow's stream, or for a larger window than it allows (`zstd --long`), that of the zstandard package."""
    if find_spec("zstandard") is not None:
        import zstandard

        with io.FileIO(path) as file, suppress(zstandard.ZstdError):
            if zstandard.get_frame_parameters(file.read(ZSTD_HEADER)).window_size > ARROW_WINDOW:
                return _ZstdStream(path)
    return pa.input_stream(path, compression="zstd")


OPENERS: dict[str, Callable[[str], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": _XzStream,
    ".zst": _open_zstd,
    ".lz4": lambda path: pa.input_stream(path, compression="lz4"),
}


class BadLine(Exception):
    """One line cannot be used; the message is the reason under which it is counted."""


class BrokenFile(Exception):
    """The file cannot be read any further; the message is the cause."""


def format_suffix(path: Path) -> str:
    """The suffix before that of a compression."""
    if path.suffix.lower() in OPENERS:
        path = path.with_suffix("")
    return path.suffix.lower()


def open_binary(path: Path) -> io.BufferedReader:
    """Opens a file for reading bytes, decompressed by its suffix in `OPENERS`."""
    opener = OPENERS.get(path.suffix.lower())
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

    A file that has no `\n` at its start, but `\r`, is split at both.

    An over-long line is truncated to `MAX_LINE + 1` bytes, which `decode` rejects.
    """
    with read_errors():
        for number, line in enumerate(iter(partial(file.readline, MAX_LINE + 1), b"")):
            if number == 0:
                line = _without_mark(line, file)
                if b"\r" in line and not line.endswith(b"\n"):
                    yield from _split_at_returns(line, file)
                    return
            if line.endswith(b"\n"):
                yield line[:-1]
                continue

            yield line
            while line and not line.endswith(b"\n"):
                line = file.readline(BLOCK)


def _split_at_returns(start: bytes, file: BinaryIO) -> Iterator[bytes]:
    r"""The lines of a file whose lines end with `\r`."""
    open_line = b""
    for block in chain([start], iter(partial(file.read, BLOCK), b"")):
        *lines, open_line = (open_line + block.replace(b"\n", b"\r")).split(b"\r")
        yield from lines
        open_line = open_line[: MAX_LINE + 1]
    if open_line:
        yield open_line


def _without_mark(line: bytes, file: BinaryIO) -> bytes:
    """The first line of a file without its byte order mark; an error if the file is UTF-16."""
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise BrokenFile("it is UTF-16, not UTF-8")
    if not line.startswith(codecs.BOM_UTF8):
        return line

    line = line.removeprefix(codecs.BOM_UTF8)
    return line if line.endswith(b"\n") else line + file.readline(len(codecs.BOM_UTF8))


def decode(line: bytes) -> str:
    """The text of a line; `BadLine` if it is over-long, has a NUL character or is not UTF-8."""
    if len(line) > MAX_LINE:
        raise BadLine("over-long line")
    if b"\0" in line:
        raise BadLine("NUL character")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise BadLine("invalid UTF-8") from None
