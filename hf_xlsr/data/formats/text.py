"""Formats made of lines: Moses, TSV, CSV, JSONL."""

from __future__ import annotations

import csv
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import islice

from langcodes import tag_is_valid

from hf_xlsr.data.columns import column_value, flat_names
from hf_xlsr.data.formats.source import (
    LONGEST_CODE,
    MAX_LINE,
    BadLine,
    Record,
    Source,
    decode,
    iter_lines,
    open_binary,
)
from hf_xlsr.data.languages import language_code
from hf_xlsr.utils.errors import XlsrError

# A row of a table: line number, its fields (or why there are none), the raw line.
TableRow = tuple[int, "Sequence[bytes] | BadLine", bytes]
# Stands for a carriage return within a line, which `csv` refuses.
_RETURN = "\u0100"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))


def read_moses(source: Source) -> Iterator[Record]:
    """Line-aligned files, one per required column: by their languages, by place, or as in `columns`."""
    positions = _moses_positions(source)
    with ExitStack() as stack:
        sides = [iter_lines(stack.enter_context(open_binary(path))) for path in source.paths]
        number = 0
        while True:
            lines = [next(side, None) for side in sides]
            if any(line is None for line in lines):
                break
            number += 1
            row: dict[str, str] = {}
            for ours, position in positions.items():
                line, path = lines[position] or b"", source.paths[position]
                try:
                    row[ours] = decode(line).removesuffix("\r")
                except BadLine as bad:
                    source.reject(number, bad, line, path)
                    break
                if ours in source.required and not row[ours].strip():
                    source.reject(number, f"empty {ours}", line, path)
                    break
            else:
                yield number, row, None
        counts = [number + (line is not None) + sum(1 for _ in side) for line, side in zip(lines, sides, strict=True)]
    if len(set(counts)) > 1:
        lengths = " and ".join(f"{path} has {n:,}" for path, n in zip(source.paths, counts, strict=True))
        raise XlsrError(f"the files are not line-aligned: {lengths} lines.")


def _moses_positions(source: Source) -> dict[str, int]:
    keys = [*map(str, range(len(source.paths))), *source.labels]
    if not source.columns and len(source.paths) != len(source.required):
        raise XlsrError(f"{source.name} needs a file for each of {', '.join(source.required)}, as 'corpus.{{en,fr}}'.")
    by_place = {} if source.columns else dict(zip(source.required, map(str, _moses_order(source)), strict=True))
    chosen = source.resolve_among(keys, by_place)
    return {ours: keys.index(theirs) % len(source.paths) for ours, theirs in chosen.items()}


def _moses_order(source: Source) -> Sequence[int]:
    """The file of each required column: the one named by its language, else the one at its place."""
    labels, languages = source.labels, source.languages
    places = range(len(labels))
    if len(languages) != len(labels):
        return places
    codes = tuple(map(language_code, labels)), tuple(map(language_code, languages))
    for files, wanted in ((labels, languages), codes):
        if len(set(wanted)) == len(wanted) and set(files) == set(wanted):
            return [files.index(language) for language in wanted]
    for place, (file, wanted_here) in enumerate(zip(*codes, strict=True)):
        if file in codes[1] and codes[1].index(file) != place and wanted_here != file:
            raise XlsrError(
                f"{source.name}: the file '{labels[place]}' would be read as '{languages[place]}'; map the files with "
                f"columns='{','.join(f'{ours}={label}' for ours, label in zip(source.required, labels, strict=True))}'."
            )
    return places


def read_tsv(source: Source) -> Iterator[Record]:
    """Tab-separated columns; a quotation mark is text like any other."""
    with open_binary(source.paths[0]) as file:
        lines = enumerate(iter_lines(file), 1)
        yield from _table(source, ((number, line.removesuffix(b"\r").split(b"\t"), line) for number, line in lines))


def read_csv(source: Source) -> Iterator[Record]:
    """Comma-separated columns with quotation as in RFC 4180; quoted line breaks are kept."""
    with open_binary(source.paths[0]) as file:
        yield from _table(source, csv_rows(iter_lines(file)))


def csv_rows(lines: Iterator[bytes]) -> Iterator[TableRow]:
    """Splits lines into CSV rows.

    Of a row whose quote is never closed, or closed within a field, only the first line is rejected, and reading
    continues with the second: a stray quotation mark does not swallow the lines after it.
    """
    pending: deque[bytes] = deque()

    def following() -> bytes | None:
        return pending.popleft() if pending else next(lines, None)

    number = 0
    while (line := following()) is not None:
        number += 1
        if b'"' not in line or len(line) > MAX_LINE:
            yield number, line.removesuffix(b"\r").split(b","), line
            continue
        record = [line]
        try:
            fields = next(csv.reader(_open_lines(record, following), strict=True))
        except csv.Error as error:
            pending.extendleft(reversed(record[1:]))
            unclosed = "unexpected end of data" in str(error)
            yield number, BadLine("unclosed quote" if unclosed else "malformed quoting"), line
            continue
        yield number, [field.replace(_RETURN, "\r").encode("latin-1") for field in fields], b"\n".join(record)
        number += len(record) - 1


def _open_lines(record: list[bytes], following: Callable[[], bytes | None]) -> Iterator[str]:
    """Yields the lines of one row to `csv`, which takes further lines while a quote is open, and records them."""
    line: bytes | None = record[0]
    size = 0
    while line is not None and (size := size + len(line)) <= MAX_LINE:
        text = line.decode("latin-1")  # which decodes all bytes
        yield text[:-1].replace("\r", _RETURN) + text[-1:] + "\n"
        line = following()
        if line is not None:
            record.append(line)
            size += 1


def _table(source: Source, rows: Iterator[TableRow]) -> Iterator[Record]:
    """Rows of a table under our names; the first good line gives the columns."""
    places: dict[str, int] = {}
    width = None
    for number, parts, raw in rows:
        try:
            if isinstance(parts, BadLine):
                raise parts
            if len(raw) > MAX_LINE:
                raise BadLine("over-long line")
            fields = [decode(part) for part in parts]
            if width is None:
                width = len(fields)
                places, is_header = _layout(source, fields)
                if is_header:
                    continue
            if len(fields) != width:
                raise BadLine("wrong column count")
        except BadLine as bad:
            source.reject(number, bad, raw)
        else:
            yield number, {ours: fields[place] for ours, place in places.items()}, raw


def _layout(source: Source, first: list[str]) -> tuple[dict[str, int], bool]:
    """Our name -> position, and whether the first line is a header."""
    required, columns = source.required, source.columns
    header, numbers = [name.strip() for name in first], [str(place) for place in range(len(first))]
    has_header = (
        not all(theirs.isdecimal() for theirs in columns.values())
        if columns
        else set(required) <= set(header) or bool(source.columns_of_languages(header))
    )
    if has_header:
        return {ours: header.index(theirs) for ours, theirs in source.resolve(header).items()}, True
    if not columns:
        if len(first) != len(required) or _names_languages(header):
            named = ",".join(f"{ours}={theirs}" for ours, theirs in zip(required, header, strict=False))
            placed = ",".join(f"{ours}={place}" for place, ours in enumerate(required))
            raise XlsrError(
                f"the first line of {source.name} has {len(first)} columns and does not name {', '.join(required)}; set "
                f"columns to {named} if it is a header, else to {placed}."
            )
    chosen = source.resolve_among(numbers, dict(zip(required, numbers, strict=False)))
    return {ours: int(theirs) for ours, theirs in chosen.items()}, False


def _names_languages(header: Sequence[str]) -> bool:
    """Whether a line consists of different language codes, which would be read as texts."""
    # Words of three letters are codes of some language: those of languages that have a code of two are meant.
    return 2 <= len(header) == len(set(header)) and all(
        len(name) <= LONGEST_CODE and tag_is_valid(name) and len(language_code(name)) == 2 for name in header
    )


def read_jsonl(source: Source) -> Iterator[Record]:
    """One JSON object per line; the first thousand give the columns."""
    names: dict[str, None] = {}
    with open_binary(source.paths[0]) as file:
        for line in islice(iter_lines(file), 1000):
            with suppress(BadLine):
                names |= dict.fromkeys(flat_names(_json_object(decode(line))))
    chosen = source.resolve(list(names)) if names else None
    with open_binary(source.paths[0]) as file:
        for number, line in enumerate(iter_lines(file), 1):
            try:
                record = _json_object(decode(line))
            except BadLine as bad:
                source.reject(number, bad, line)
                continue
            chosen = chosen or source.resolve(flat_names(record))
            yield number, {ours: column_value(record, theirs) for ours, theirs in chosen.items()}, line


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
