"""Formats made of lines: Moses, TSV, CSV, JSONL."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

from langcodes import tag_is_valid

from hf_xlsr.data.columns import column_value, flat_names, resolve_columns, selecting_columns
from hf_xlsr.data.formats.lines import MAX_LINE, decode, iter_lines, open_binary
from hf_xlsr.data.formats.source import LONGEST_CODE, BadLine, Record, Source
from hf_xlsr.data.languages import language_code
from hf_xlsr.utils.errors import XlsrError

# A row of a table: line number, its fields (or why there are none), the raw line.
TableRow = tuple[int, "Sequence[bytes] | BadLine", bytes]


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

    def positions(chosen: Mapping[str, str]) -> dict[str, int]:
        return {ours: keys.index(theirs) % len(source.paths) for ours, theirs in chosen.items()}

    if source.columns:
        return positions(
            resolve_columns(source.columns, source.required, keys, source.name, selecting=source.selecting)
        )
    if len(source.paths) != len(source.required):
        raise XlsrError(
            f"{source.name} is {len(source.paths)} file(s) for the columns {', '.join(source.required)}; give one file "
            "per column, such as 'corpus.{en,fr}'."
        )
    by_place = dict(zip(source.required, _moses_order(source), strict=True))
    return by_place | positions(selecting_columns(source.selecting, by_place, keys, source.name))


def _moses_order(source: Source) -> Sequence[int]:
    """The file of each required column: the one named by its language, else the one at its place."""
    labels, languages = source.labels, source.languages
    places = range(len(labels))
    if len(languages) != len(labels):
        return places
    codes = [language_code(label) for label in labels], [language_code(language) for language in languages]
    for files, wanted in ((list(labels), list(languages)), codes):
        if files != wanted and len(set(wanted)) == len(wanted) and set(files) == set(wanted):
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
    number = 0
    while (line := pending.popleft() if pending else next(lines, None)) is not None:
        number += 1
        if b'"' not in line or len(line) > MAX_LINE:
            yield number, line.removesuffix(b"\r").split(b","), line
            continue
        record, size, fields = [line], len(line), list[bytes]()
        try:
            quoted = _scan(line, fields, None)
            while quoted is not None and size <= MAX_LINE:
                following = pending.popleft() if pending else next(lines, None)
                if following is None:
                    break
                record.append(following)
                size += 1 + len(following)
                if size <= MAX_LINE:
                    quoted = _scan(following, fields, quoted)
            bad = BadLine("unclosed quote") if quoted is not None else None
        except BadLine as error:
            bad = error
        if bad is not None:
            pending.extendleft(reversed(record[1:]))
            yield number, bad, line
            continue
        yield number, fields, b"\n".join(record)
        number += len(record) - 1


_QUOTED = re.compile(rb'[^"]*(?:""[^"]*)*')


def _scan(line: bytes, fields: list[bytes], quoted: list[bytes] | None) -> list[bytes] | None:
    """Appends the fields of a line; returns the parts of a quoted field that the next line continues, or None."""
    at = 0
    while True:
        if quoted is None and line.startswith(b'"', at):
            quoted, at = [], at + 1
        if quoted is None:
            end = line.find(b",", at)
            if end < 0:
                fields.append(line[at:].removesuffix(b"\r"))
                return None
            fields.append(line[at:end])
        else:
            match = _QUOTED.match(line, at)
            end = match.end() if match else at
            quoted.append(line[at:end])
            if end == len(line):
                quoted.append(b"\n")
                return quoted
            fields.append(b"".join(quoted).replace(b'""', b'"'))
            quoted = None
            end += 1
            if end == len(line) or (end == len(line) - 1 and line.endswith(b"\r")):
                return None
            if line[end : end + 1] != b",":
                raise BadLine("malformed quoting")
        at = end + 1


def _table(source: Source, rows: Iterator[TableRow]) -> Iterator[Record]:
    """Rows of a table under our names; the first good line gives the columns."""
    places: dict[str, int] | None = None
    width = 0
    for number, parts, raw in rows:
        bad: object = parts if isinstance(parts, BadLine) else "over-long line" if len(raw) > MAX_LINE else None
        fields: list[str] = []
        if bad is None and not isinstance(parts, BadLine):
            try:
                fields = [decode(part) for part in parts]
            except BadLine as error:
                bad = error
        if bad is None and places is None:
            width = len(fields)
            places, is_header = _layout(source, fields)
            if is_header:
                continue
        if bad is None and len(fields) != width:
            bad = "wrong column count"
        if bad is not None or places is None:
            source.reject(number, bad, raw)
            continue
        yield number, {ours: fields[place] for ours, place in places.items()}, raw


def _layout(source: Source, first: list[str]) -> tuple[dict[str, int], bool]:
    """Our name -> position, and whether the first line is a header."""
    required, columns, file = source.required, source.columns, source.name
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
                f"the first line of {file} has {len(first)} columns and does not name {', '.join(required)}; set columns "
                f"to {named} if it is a header, else to {placed}."
            )
        columns = dict(zip(required, numbers, strict=True))
    chosen = resolve_columns(columns, required, numbers, file, selecting=source.selecting)
    return {ours: int(theirs) for ours, theirs in chosen.items()}, False


def _names_languages(header: Sequence[str]) -> bool:
    """Whether a line consists of different language codes, which would be read as texts."""
    # Words of three letters are codes of some language: those of languages that have a code of two are meant.
    return 2 <= len(header) == len(set(header)) and all(
        len(name) <= LONGEST_CODE and tag_is_valid(name) and len(language_code(name)) == 2 for name in header
    )


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_jsonl(source: Source) -> Iterator[Record]:
    """One JSON object per line; the first one gives the columns."""
    chosen: dict[str, str] | None = None
    with open_binary(source.paths[0]) as file:
        for number, line in enumerate(iter_lines(file), 1):
            try:
                record = _json_object(decode(line))
                bad: object = "malformed JSON"
            except BadLine as error:
                record, bad = None, error
            if record is None:
                source.reject(number, bad, line)
                continue
            if chosen is None:
                chosen = source.resolve(flat_names(record))
            yield number, {ours: column_value(record, theirs) for ours, theirs in chosen.items()}, line


def _json_object(text: str) -> dict[str, object] | None:
    try:
        record = json.loads(text)
        # Half of a surrogate pair passes the parser but no tokenizer.
        if _SURROGATE.search(text):
            json.dumps(record, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
