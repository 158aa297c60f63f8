"""Formats that contain lines or rows: JSON documents, SGM files of WMT, and zips of OPUS."""

from __future__ import annotations

import html
import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from hf_xlsr.data.columns import flat_names, selected
from hf_xlsr.data.file_languages import language_of_file
from hf_xlsr.data.formats.input_file import InputFile, Record
from hf_xlsr.data.formats.lines import (
    MAX_LINE,
    SGM,
    BrokenFile,
    format_suffix,
    iter_lines,
    open_binary,
    read_errors,
)
from hf_xlsr.data.languages import language_code

LARGEST = 1 << 26  # bytes of a JSON document; the parser takes several times as much memory
NAMING_ROWS = 1000  # that give the columns
_SEGMENT = re.compile(rb"(<seg\b[^<>]*>|</seg>)", re.IGNORECASE)
# What the zips of OPUS hold besides the two texts.
_NO_TEXT_NAMES = ("readme", "license", "licence")
_NO_TEXT_SUFFIXES = (".xml", ".ids", ".scores", ".info", ".md")
_METHODS = (
    zipfile.ZIP_STORED,
    zipfile.ZIP_DEFLATED,
    zipfile.ZIP_BZIP2,
)  # LZMA takes the memory that a header asks for


def text_lines(path: Path, stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a plain text file; the segments of an SGM file."""
    lines = iter_lines(stream)
    return _segments(lines) if format_suffix(path) in SGM else lines


def _segments(lines: Iterator[bytes]) -> Iterator[bytes]:
    """The text of each `<seg>`, on one line and with its entities resolved."""
    segment: bytes | None = None
    for line in lines:
        for piece in _SEGMENT.split(line + b"\n"):
            if piece.lower().startswith(b"<seg"):
                segment = b""
            elif piece.lower() == b"</seg>" and segment is not None:
                yield _resolved(segment)
                segment = None
            elif segment is not None:
                segment = (segment + piece)[: MAX_LINE + 1]  # `decode` refuses an over-long one
    if segment is not None:
        raise BrokenFile("its last <seg> has no end")


def _resolved(segment: bytes) -> bytes:
    text = html.unescape(segment.decode("utf-8", "surrogateescape"))
    return re.sub(r"[ \t\r\n]+", " ", text).strip(" ").encode("utf-8", "surrogateescape")


def read_json(file: InputFile) -> Iterator[Record]:
    """A list of objects, an object with such a list under `data`, or an object on each line."""
    records = _records(file.paths[0])
    names: dict[str, None] = {}
    for record in records[:NAMING_ROWS]:
        if isinstance(record, dict):
            names |= dict.fromkeys(flat_names(record))

    columns = file.resolve(list(names)) if records else {}
    for number, record in enumerate(records, 1):
        if isinstance(record, dict) and _is_unicode(record):
            yield number, selected(record, columns), None
        else:
            file.reject(number, "malformed JSON", json.dumps(record))


def is_json_lines(path: Path) -> bool:
    """Whether the first line of a file is a JSON object, and not a whole document with `data`."""
    with open_binary(path) as stream:
        line = next(iter_lines(stream), b"")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and not isinstance(record.get("data"), list)


def _records(path: Path) -> Sequence[Any]:
    """The rows of a document."""
    with open_binary(path) as stream, read_errors():
        content = stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise BrokenFile(f"it is larger than {LARGEST:,} bytes, the most for a JSON document; use JSON lines (.jsonl)")
    with read_errors((ValueError, RecursionError)):
        document = json.loads(content.decode("utf-8-sig"))
    if isinstance(document, dict):
        document = document.get("data")
    if not isinstance(document, list):
        raise BrokenFile('it must be a list of objects, {"data": [...]} or an object on each line')
    return document


def _is_unicode(record: Any) -> bool:
    """Whether no text has half of a surrogate pair, which passes the parser but no tokenizer."""
    try:
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _language(name: str, languages: Sequence[str]) -> str | None:
    tag = language_of_file(name, languages, folder=False)
    return language_code(tag) if tag else None


def open_members(file: InputFile, stack: ExitStack) -> dict[Path, BinaryIO]:
    """The texts of a zip of OPUS by the names of its members, as streams: nothing is extracted.

    Of more texts than columns, those that are named after the languages.
    """
    archive = stack.enter_context(zipfile.ZipFile(file.paths[0]))
    texts = []
    for info in archive.infolist():
        name = Path(info.filename).name.lower()
        if not (info.is_dir() or name.startswith(_NO_TEXT_NAMES) or name.endswith(_NO_TEXT_SUFFIXES)):
            texts.append(info)
    wanted = len(file.required)
    if len(texts) > wanted:
        codes = set(map(language_code, file.languages))
        texts = [info for info in texts if _language(info.filename, file.languages) in codes]
    if len(texts) != wanted:
        names = ", ".join(archive.namelist()[:5])
        raise BrokenFile(
            f"it must hold the {wanted} texts of the languages, such as 'corpus.de', got {names or 'nothing'}"
        )

    members: dict[Path, BinaryIO] = {}
    for info in texts:
        if info.flag_bits & 1 or info.compress_type not in _METHODS:
            raise BrokenFile(f"its member '{info.filename}' is encrypted or compressed by another method than deflate")
        members[Path(info.filename)] = stack.enter_context(archive.open(info))  # type: ignore[assignment]
    return members
