"""Formats made of lines: Moses, TSV, CSV, JSONL."""

from __future__ import annotations

import csv
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import islice, zip_longest
from pathlib import Path
from typing import BinaryIO
from zipfile import BadZipFile

from hf_xlsr.data.columns import flat_names, selected
from hf_xlsr.data.file_languages import file_order
from hf_xlsr.data.formats.documents import open_members, text_lines
from hf_xlsr.data.formats.input_file import InputFile, Record
from hf_xlsr.data.formats.lines import MAX_LINE, READ_ERRORS, BadLine, decode, iter_lines, open_binary, read_errors
from hf_xlsr.data.languages import is_language_code, language_code
from hf_xlsr.utils.errors import XlsrError

# A row of a table: line number, its fields (or why there are none), the raw line.
TableRow = tuple[int, "Sequence[bytes] | BadLine", bytes]
# Stands for a carriage return within a line, which `csv` refuses.
_RETURN = "\u0100"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))


def read_moses(file: InputFile) -> Iterator[Record]:
    """Line-aligned files, one per required column: by their languages, by position, or as in `columns`."""
    with ExitStack() as stack:
        yield from _aligned_rows(
            file, {path: stack.enter_context(open_binary(path)) for path in file.paths}, file.labels
        )


def read_zip(file: InputFile) -> Iterator[Record]:
    """As `read_moses`, the texts in a zip of OPUS."""
    with ExitStack() as stack, read_errors((BadZipFile, RuntimeError, *READ_ERRORS)):
        members = open_members(file, stack)
        yield from _aligned_rows(file, members, [path.suffix.removeprefix(".") for path in members])


def _aligned_rows(file: InputFile, streams: Mapping[Path, BinaryIO], labels: Sequence[str]) -> Iterator[Record]:
    """The rows of line-aligned texts, opened by their names."""
    paths = list(streams)
    positions = _moses_positions(file, paths, labels)
    sides = [text_lines(path, stream) for path, stream in streams.items()]
    for number, lines in enumerate(zip_longest(*sides), 1):
        if None in lines:
            shortest = paths[lines.index(None)]
            raise XlsrError(f"the files are not line-aligned: {shortest} ends after line {number - 1:,}.")

        row = _moses_row(file, number, lines, positions, paths)
        if row is not None:
            yield number, row, None


def _moses_row(
    file: InputFile,
    number: int,
    lines: Sequence[bytes],
    positions: Mapping[str, int],
    paths: Sequence[Path],
) -> dict[str, str] | None:
    """The texts of one line of all files under our names; None for a bad line, which is rejected."""
    row = {}
    for name, position in positions.items():
        line = lines[position]
        try:
            row[name] = decode(line).removesuffix("\r")
            if name in file.required and not row[name].strip():
                raise BadLine(f"empty {name}")
        except BadLine as fault:
            file.reject(number, fault, line, paths[position])
            return None

    return row


def _moses_positions(file: InputFile, paths: Sequence[Path], labels: Sequence[str]) -> dict[str, int]:
    """Our name -> position of its file."""
    num_files = len(paths)
    default = {}
    if not file.columns:
        if num_files != len(file.required):
            raise XlsrError(f"{file.name} must be {len(file.required)} files, such as 'corpus.{{en,fr}}'.")
        default = dict(zip(file.required, map(str, file_order(paths, file.languages)), strict=True))

    keys = [*map(str, range(num_files)), *labels]
    columns = file.resolve(keys, default)
    return {name: keys.index(column) % num_files for name, column in columns.items()}


def read_tsv(file: InputFile) -> Iterator[Record]:
    """Tab-separated columns; a quotation mark is text like any other."""
    with open_binary(file.paths[0]) as stream:
        lines = enumerate(iter_lines(stream), 1)
        yield from _table(file, ((number, line.removesuffix(b"\r").split(b"\t"), line) for number, line in lines))


def read_csv(file: InputFile) -> Iterator[Record]:
    """Comma-separated columns with quotation as in RFC 4180; quoted line breaks are kept."""
    with open_binary(file.paths[0]) as stream:
        yield from _table(file, csv_rows(iter_lines(stream)))


def csv_rows(lines: Iterator[bytes]) -> Iterator[TableRow]:
    """Splits lines into CSV rows.

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
            yield number, line.removesuffix(b"\r").split(b","), line
            continue

        record = [line]
        try:
            fields = next(csv.reader(_open_lines(record, following), strict=True))
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


def _table(file: InputFile, rows: Iterator[TableRow]) -> Iterator[Record]:
    """Rows of a table under our names; the first good line gives the columns."""
    positions: dict[str, int] = {}
    width = None
    for number, cells, raw in rows:
        try:
            if isinstance(cells, BadLine):
                raise cells
            if len(raw) > MAX_LINE:
                raise BadLine("over-long line")
            texts = list(map(decode, cells))
            if width is None:
                width = len(texts)
                positions, is_header = _layout(file, texts)
                if is_header:
                    continue
            if len(texts) != width:
                raise BadLine("wrong column count")
        except BadLine as fault:
            file.reject(number, fault, raw)
        else:
            yield number, {name: texts[position] for name, position in positions.items()}, raw


def _layout(file: InputFile, first: list[str]) -> tuple[dict[str, int], bool]:
    """Our name -> position, and whether the first line is a header."""
    header = list(map(str.strip, first))
    if _is_header(file, header):
        return {name: header.index(column) for name, column in file.resolve(header).items()}, True

    required = file.required
    if not file.columns and (len(first) != len(required) or _names_languages(header)):
        raise XlsrError(
            f"the first line of {file.name} does not name {', '.join(required)}; set `columns` to their names there if "
            "it is a header, else to their positions, as in source=0,target=1."
        )
    numbers = list(map(str, range(len(first))))
    columns = file.resolve(numbers, dict(zip(required, numbers, strict=False)))
    return {name: int(column) for name, column in columns.items()}, False


def _is_header(file: InputFile, header: Sequence[str]) -> bool:
    if file.columns:
        return not all(map(str.isdecimal, file.columns.values()))
    return set(file.required) <= set(header) or bool(file.columns_of_languages(header))


def _names_languages(header: Sequence[str]) -> bool:
    """Whether a line consists of different language codes, which would be read as texts."""
    if len(header) < 2 or len(set(header)) < len(header):
        return False
    # Words of three letters are codes of some language: those of languages that have a code of two are meant.
    return all(is_language_code(name) and len(language_code(name)) == 2 for name in header)


def read_jsonl(file: InputFile) -> Iterator[Record]:
    """One JSON object per line; the first thousand give the columns."""
    names: dict[str, None] = {}
    with open_binary(file.paths[0]) as stream:
        for line in islice(iter_lines(stream), 1000):
            with suppress(BadLine):
                names |= dict.fromkeys(flat_names(_json_object(decode(line))))

    columns: dict[str, str] = {}
    with open_binary(file.paths[0]) as stream:
        for number, line in enumerate(iter_lines(stream), 1):
            try:
                record = _json_object(decode(line))
            except BadLine as fault:
                file.reject(number, fault, line)
                continue
            columns = columns or file.resolve(list(names))
            yield number, selected(record, columns), line


def _json_object(text: str) -> dict[str, object]:
    try:
        record = json.loads(text)
        # Half of a surrogate pair passes the parser but no tokenizer.
        if _SURROGATE.search(text):
            json.dumps(record, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise BadLine("malformed JSON")
    return record
