"""What readers take and yield, and the lines of plain and compressed files."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
from langcodes import tag_is_valid

from hf_xlsr.data.columns import resolve_columns
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.languages import language_code
from hf_xlsr.utils.errors import XlsrError

MAX_LINE = 1 << 20  # bytes
BLOCK = 1 << 16
READ_ERRORS = (EOFError, OSError, zlib.error, lzma.LZMAError)
OPENERS: dict[str, Callable[[str], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    # Arrow's stream, unlike that of the zstandard package, detects a truncated file.
    ".zst": lambda path: pa.input_stream(path, compression="zstd"),
}
LONGEST_CODE = 8  # letters of a language code, as in eng_Latn
# A file with a larger share of malformed lines than this, after so many lines, is not what the options say.
MAX_BAD, MIN_LINES = 0.2, 1000
# Faults of lines that are malformed. Empty sides are not: catalogues and multilingual files have many.
LIKELY_CAUSES = {
    "invalid UTF-8": "the file is probably in another encoding; convert it to UTF-8",
    "NUL character": "the file is probably UTF-16 or binary; convert it to UTF-8",
    "over-long line": "the file probably has another format or is binary; set `format`",
    "wrong column count": "the delimiter, or the format, is probably another one; check the file and `format`",
    "unclosed quote": "quotation marks are probably text here; use a file in the format tsv",
    "malformed quoting": "quotation marks are probably text here; use a file in the format tsv",
    "malformed JSON": "the file is probably not one JSON object per line; check `format`",
}


class BadLine(Exception):
    """One line cannot be used; the message is the reason under which it is counted."""


class BrokenFile(Exception):
    """The file cannot be read any further; the message is the cause."""


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
    try:
        if len(line) <= MAX_LINE and b"\0" not in line:
            return line.decode("utf-8")
        reason = "over-long line" if len(line) > MAX_LINE else "NUL character"
    except UnicodeDecodeError:
        reason = "invalid UTF-8"
    raise BadLine(reason)


@dataclass
class Source:
    """A corpus to read: the arguments of `read_rows`, and what was counted.

    `paths` is one file, one per side for Moses, or the id of a dataset; `labels` are the distinct parts of their names.
    """

    name: str
    paths: tuple[Path, ...]
    labels: tuple[str, ...]
    columns: Mapping[str, str]
    required: tuple[str, ...]
    languages: tuple[str, ...]
    split: str | None
    config: str | None
    quarantine: Quarantine
    default_split: str = "train"
    optional: tuple[str, ...] | None = None
    selecting: tuple[str, ...] = ()
    num_rows: int = 0
    malformed: Counter[str] = field(default_factory=Counter)

    def resolve(self, names: Collection[str]) -> dict[str, str]:
        """Our name -> column, for a table that has columns of these names."""
        columns = self.columns or self.columns_of_languages(names)
        return resolve_columns(columns, self.required, names, self.name, self.optional, self.selecting)

    def resolve_among(self, names: Collection[str], columns: Mapping[str, str]) -> dict[str, str]:
        """Like `resolve`, for a file with names of its own; `columns` is its default mapping."""
        return resolve_columns(self.columns or columns, self.required, names, self.name, selecting=self.selecting)

    def columns_of_languages(self, names: Collection[str]) -> dict[str, str]:
        """Columns named like the two languages, for a table of pairs without columns `source` and `target`."""
        if self.required != ("source", "target") or len(set(self.languages)) != 2 or {*self.required} & {*names}:
            return {}
        wanted = list(map(language_code, self.languages))
        columns = {language_code(name): name for name in names if len(name) <= LONGEST_CODE and tag_is_valid(name)}
        if not columns.keys() >= {*wanted}:
            return {}
        return {ours: columns[code] for ours, code in zip(self.required, wanted, strict=True)}

    def reject(self, number: int, reason: object, text: str | bytes, path: Path | None = None) -> None:
        """Sends a line to the quarantine; an error if too many lines are malformed."""
        self.quarantine.reject(path or self.name, number, str(reason), text)
        self.num_rows += 1
        if str(reason) not in LIKELY_CAUSES:
            return
        self.malformed[str(reason)] += 1
        bad = self.malformed.total()
        if self.num_rows >= MIN_LINES and bad > MAX_BAD * self.num_rows:
            counts = ", ".join(f"{count:,} {name}" for name, count in self.malformed.most_common())
            raise XlsrError(
                f"{path or self.name}: {bad:,} of the first {self.num_rows:,} lines are malformed ({counts}); "
                f"{LIKELY_CAUSES[self.malformed.most_common(1)[0][0]]}."
            )


# Line number, row by our names, and the raw line (None where a format has none).
Record = tuple[int, dict[str, Any], "str | bytes | None"]
Reader = Callable[[Source], Iterator[Record]]
