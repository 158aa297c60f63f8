"""Tables of lines: how they are split into rows, and what the shape of a whole file says about it."""

from __future__ import annotations

import csv
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import AnyStr

from hf_xlsr.data.formats.lines import MAX_LINE, BadLine, BrokenFile, iter_lines, open_binary

# A row of a table: line number, its fields (or why there are none), the raw line.
TableRow = tuple[int, "Sequence[bytes] | BadLine", bytes]
TAB = b"\t"
SEPARATORS = (TAB, b",", b";")
FIRST_ROWS = 1000  # that say how wide a table is
QUOTED_LINES = 20_000  # with quotation marks, that say whether they are quotation
FEW_COMMAS = 10  # fields that are quoted for their commas say nothing if there are fewer
FEW_ROWS = 3
RARE = 0.05  # share of fields that may be no quotation in a quoted file
RARE_WIDTH = 0.01
MAX_NUMBER = 40  # bytes
# Stands for a carriage return within a line, which `csv` refuses.
_RETURN = "\u0100"
_QUOTED = re.compile(rb'"(?:[^"]|"")*"')
_FIELD = re.compile(rb'"(?P<quoted>[^"]*(?:""[^"]*)*)"(?=\t|\Z)|(?P<plain>[^\t]+)')
_WORD = re.compile(rb"(?!nan$|null$|none$)[a-z\x80-\xff][\w .\x80-\xff]{2,40}", re.IGNORECASE)
_NUMBER = re.compile(rb"\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\s*")

csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))


def tsv_rows(lines: Iterator[bytes]) -> Iterator[TableRow]:
    """Splits lines at tabs."""
    for number, line in enumerate(lines, 1):
        yield number, line.removesuffix(b"\r").split(TAB), line


def csv_rows(lines: Iterator[bytes], separator: bytes = b",") -> Iterator[TableRow]:
    """Splits lines into rows, with quotation as in RFC 4180.

    Of a row whose quote is never closed, or closed within a field, only the first line is rejected, and reading
    continues with the second: a stray quotation mark does not swallow the lines after it.
    """
    pending: deque[bytes] = deque()

    def following() -> bytes | None:
        return pending.popleft() if pending else next(lines, None)

    number = 0
    for line in iter(following, None):
        number += 1
        if b'"' not in line or len(line) > MAX_LINE:
            yield number, line.removesuffix(b"\r").split(separator), line
            continue

        record = [line]
        try:
            fields = next(csv.reader(_open_lines(record, following), delimiter=separator.decode(), strict=True))
        except csv.Error as error:
            pending.extendleft(reversed(record[1:]))
            is_unclosed = "unexpected end of data" in str(error)
            yield number, BadLine("unclosed quote" if is_unclosed else "malformed quoting"), line
            continue

        yield number, [field.replace(_RETURN, "\r").encode("latin-1") for field in fields], b"\n".join(record)
        number += len(record) - 1


def _open_lines(record: list[bytes], following: Callable[[], bytes | None]) -> Iterator[str]:
    """Yields the lines of one row to `csv`, which takes further lines while a quote is open, and records them."""
    size = len(record[0])
    while size <= MAX_LINE:
        text = record[-1].decode("latin-1")  # which decodes all bytes
        yield text[:-1].replace("\r", _RETURN) + text[-1:] + "\n"
        line = following()
        if line is None:
            return
        record.append(line)
        size += 1 + len(line)


@dataclass(frozen=True)
class TableShape:
    """What the first rows of a table have in common.

    Attributes:
        width: Columns of most rows, less empty ones at their end.
        widths: Numbers of columns that are no exception.
        numbers: Columns that are numbers in all rows but the first, where they are words; of a few rows none.
    """

    width: int
    widths: frozenset[int]
    numbers: frozenset[int]

    @classmethod
    def of(cls, rows: Iterable[TableRow]) -> TableShape:
        """The shape of a table."""
        widths = Counter[int]()
        first_row: Sequence[bytes] | None = None
        numbers: set[int] = set()
        with suppress(BrokenFile):  # the reader says it, after the rows before it
            for _, cells, _ in islice(rows, FIRST_ROWS):
                if isinstance(cells, BadLine) or not any(map(bytes.strip, cells)):
                    continue
                widths[len(without_empty_end(cells))] += 1
                numeric = {position for position, cell in enumerate(cells) if _NUMBER.fullmatch(cell[:MAX_NUMBER])}
                if first_row is None:
                    first_row = cells
                    numbers = {position for position, cell in enumerate(cells) if _WORD.fullmatch(cell)}
                else:
                    numbers &= numeric

        usual = max(widths, key=widths.__getitem__, default=0)
        common = {width for width, count in widths.items() if count >= max(2, RARE_WIDTH * widths.total())}
        return cls(usual, frozenset(common | {usual}), frozenset(numbers if widths.total() > FEW_ROWS else ()))


def without_empty_end(cells: Sequence[AnyStr]) -> Sequence[AnyStr]:
    """The columns of a row up to the last that is not empty."""
    width = len(cells)
    while width and not cells[width - 1].strip():
        width -= 1
    return cells[:width]


def separator_of(path: Path) -> bytes:
    """What separates the columns of a CSV file: tabs if all lines have some, else commas, or semicolons in Europe."""
    counts: dict[bytes, Counter[int]] = {separator: Counter() for separator in SEPARATORS}
    for line in _first_lines(path):
        outside = _QUOTED.sub(b"", line)
        for separator in SEPARATORS:
            counts[separator][outside.count(separator)] += 1

    num_lines = counts[TAB].total()
    if num_lines and counts[TAB][0] <= RARE * num_lines:
        return TAB
    for separator in (b",", b";"):
        number, most_lines = max(counts[separator].items(), key=lambda item: item[1], default=(0, 0))
        if number and most_lines >= 0.9 * num_lines:
            return separator
    return b","


def _first_lines(path: Path) -> Iterator[bytes]:
    with suppress(BrokenFile), open_binary(path) as stream:
        for line in islice(iter_lines(stream), FIRST_ROWS):
            if line.strip():
                yield line


def is_quoted(path: Path) -> bool:
    """Whether quotation marks of a file with tabs are quotation, as in RFC 4180, and not text.

    They are in files whose fields are all quoted but for numbers, or where fields are quoted that need it: those with
    quotation marks, tabs or line breaks, in files of spreadsheets also those with commas.
    """
    counts = _fields_by_kind(path)
    num_quoted = counts["needed"] + counts["comma"] + counts["needless"]
    if not num_quoted or counts["stray"] > RARE * num_quoted:
        return False
    if counts["plain"] + counts["comma outside"] <= RARE * num_quoted:
        return True
    if counts["needless"] > RARE * num_quoted:
        return False
    return bool(counts["needed"]) or (counts["comma"] >= FEW_COMMAS and not counts["comma outside"])


def _fields_by_kind(path: Path) -> Counter[str]:
    """How many fields are quoted, by why, and how many are not; of a line without quotation marks, one."""
    counts = Counter[str]()
    num_tabs = 0  # of the first line

    def with_marks(lines: Iterator[bytes]) -> Iterator[bytes]:
        # Other lines are counted only; those inside a quoted field make no difference.
        nonlocal num_tabs
        for number, line in enumerate(lines):
            if not number:
                num_tabs = line.count(TAB)
            if b'"' in line:
                yield line
            elif number:  # a header may have no quotation marks
                counts["comma outside" if b"," in line else "plain"] += 1

    with suppress(BrokenFile), open_binary(path) as stream:
        for _, cells, raw in islice(csv_rows(with_marks(iter_lines(stream)), TAB), QUOTED_LINES):
            if isinstance(cells, BadLine):
                counts["stray"] += 1
                continue
            # A mark that opens a text of one row may seem to be closed by one at the end of another.
            are_rows = {line.count(TAB) for line in raw.split(b"\n")} == {num_tabs}
            for field in _FIELD.finditer(raw.removesuffix(b"\r")):
                is_across = are_rows and field["quoted"] and re.search(rb"[\t\n]", field["quoted"])
                counts["stray" if is_across else _kind_of_field(field)] += 1
    return counts


def _kind_of_field(field: re.Match[bytes]) -> str:
    """Why a field is quoted, or what it is if it is not."""
    content = field["quoted"]
    if content is None:
        text = field["plain"]
        if b'"' in text:
            return "stray"
        if b"," in text:
            return "comma outside"
        return "number" if _NUMBER.fullmatch(text) else "plain"
    if re.search(rb'["\t\n\r]', content):
        return "needed"
    return "comma" if b"," in content else "needless"
