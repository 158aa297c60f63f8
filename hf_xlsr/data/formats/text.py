"""Formats made of lines: Moses, TSV, CSV, JSONL."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import BinaryIO
from zipfile import BadZipFile

from hf_xlsr.data.columns import NUMERIC_COLUMNS, flat_names, selected
from hf_xlsr.data.file_languages import file_order
from hf_xlsr.data.formats.delimited import (
    TAB,
    TableRow,
    TableShape,
    csv_rows,
    is_quoted,
    separator_of,
    tsv_rows,
    without_empty_end,
)
from hf_xlsr.data.formats.documents import open_members, text_lines
from hf_xlsr.data.formats.headers import code_of_language, names_columns, our_columns
from hf_xlsr.data.formats.input_file import InputFile, Record
from hf_xlsr.data.formats.lines import MAX_LINE, READ_ERRORS, BadLine, decode, iter_lines, open_binary, read_errors
from hf_xlsr.data.languages import is_language_code, language_code
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


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
            if file.needs(name) and not row[name].strip():
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


def read_tsv(file: InputFile, quoted: bool | None = None, *notes: str) -> Iterator[Record]:
    """Tab-separated columns; quotation marks are quotation (`quoted`) or text, by default as the file shows.

    `notes` say what is unusual about the file.
    """
    if quoted is None:
        quoted = is_quoted(file.paths[0])
    if quoted:
        return _table(file, partial(csv_rows, separator=TAB), TAB, *notes, "fields are quoted")
    return _table(file, tsv_rows, TAB, *notes)


def read_csv(file: InputFile, separator: bytes | None = None) -> Iterator[Record]:
    """Columns with a separator, by default the one that the file shows, and quotation; quoted line breaks are kept."""
    separator = separator or separator_of(file.paths[0])
    if separator == TAB:
        return read_tsv(file, None, "columns are separated by tabs")
    notes = [] if separator == b"," else [f"columns are separated by {separator.decode()}"]
    return _table(file, partial(csv_rows, separator=separator), separator, *notes)


def _table(
    file: InputFile,
    split_rows: Callable[[Iterator[bytes]], Iterator[TableRow]],
    separator: bytes,
    *notes: str,
) -> Iterator[Record]:
    """Rows of a table under our names; the first good line of usual width gives the columns."""
    path = file.paths[0]
    with open_binary(path) as stream:
        shape = TableShape.of(split_rows(iter_lines(stream)))

    positions: dict[str, int] = {}
    with open_binary(path) as stream:
        for number, cells, raw in split_rows(iter_lines(stream)):
            try:
                if isinstance(cells, BadLine):
                    raise cells
                if len(raw) > MAX_LINE:
                    raise BadLine("over-long line")

                texts = list(map(decode, cells))
                if not positions:
                    positions, is_header = _layout(file, texts, shape)
                    num_columns = len(texts) if is_header else max(shape.width, max(positions.values()) + 1)
                    how = ", ".join([f"header: {'yes' if is_header else 'no'}", *notes])
                    file.quarantine.note(path.name, how, unusual=bool(notes))
                    logger.info("%s: %s", path, how)
                    if is_header:
                        continue

                has_extra = _has_extra(texts, max(positions.values()), num_columns, shape, separator)
            except BadLine as fault:
                file.reject(number, fault, raw)
            else:
                file.quarantine.repair("extra columns", has_extra)
                yield number, {name: texts[p] for name, p in positions.items() if p < len(texts)}, raw


def _has_extra(
    texts: Sequence[str],
    last: int,
    num_columns: int,
    shape: TableShape,
    separator: bytes,
) -> bool:
    """Whether a row has more columns than most, which are ignored; `BadLine` where the needed ones may be others."""
    if last >= len(texts):
        raise BadLine("wrong column count")
    if not any(map(str.strip, texts[num_columns:])):
        return False
    # A comma that should be quoted, or a tab in a text, shifts the columns behind it.
    if separator != TAB or len(texts) not in shape.widths:
        raise BadLine("wrong column count")
    return True


def _layout(file: InputFile, first: list[str], shape: TableShape) -> tuple[dict[str, int], bool]:
    """Our name -> position, and whether the first line is a header; `BadLine` for a line of fewer columns than most."""
    header = list(map(str.strip, first))
    default = _columns_of_header(file, header, shape)
    if default is not None:
        columns = file.resolve(header, default)
        if shape.width > len(header):
            raise XlsrError(
                f"the header of {file.name} has {len(header)} names ({', '.join(header)}), but most rows have "
                f"{shape.width} columns; add the names that are missing."
            )
        return {name: header.index(column) for name, column in columns.items()}, True

    required = file.required
    if len(without_empty_end(header)) < shape.width:
        raise BadLine("wrong column count")
    if not file.columns and (
        len(required) not in (shape.width, len(header)) or _names_languages(header) or names_columns(header)
    ):
        raise XlsrError(
            f"the first line of {file.name} does not name {', '.join(required)}; set `columns` to their names there if "
            "it is a header, else to their positions, as in source=0,target=1."
        )
    numbers = list(map(str, range(max(len(header), *shape.widths))))
    columns = file.resolve(numbers, dict(zip(required, numbers, strict=False)))
    return {name: int(column) for name, column in columns.items()}, False


def _columns_of_header(file: InputFile, header: Sequence[str], shape: TableShape) -> Mapping[str, str] | None:
    """Our name -> name in the header, where the caller maps no columns; None if the line is not a header."""
    if file.columns:
        names_all = set(file.columns.values()) <= set(header)
        is_header = not all(map(str.isdecimal, file.columns.values())) and (names_all or len(header) >= shape.width)
        return {} if is_header else None

    columns = file.columns_of_languages(header)
    if columns or set(file.required) <= set(header):
        return columns
    number_columns = {position for position, name in enumerate(file.required) if name in NUMERIC_COLUMNS}
    is_header = names_columns(header) or not number_columns.isdisjoint(shape.numbers)
    if not is_header or _names_languages(header):
        return None

    columns = our_columns(header)
    if set(file.required) <= set(columns):
        return columns
    languages = any(map(code_of_language, header))
    if len(header) == len(file.required) and set(columns).isdisjoint(file.required) and not languages:
        return dict(zip(file.required, header, strict=True))
    return None


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
