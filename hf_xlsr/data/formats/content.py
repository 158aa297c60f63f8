"""Recognises files that should be plain text, but hold markup, JSON, subtitles or a table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hf_xlsr.data.formats.lines import BLOCK, READ_ERRORS, SGM, BrokenFile, format_suffix, open_binary
from hf_xlsr.utils.errors import XlsrError

FEWEST = 3  # lines that show a habit
_JSON_START = re.compile(r'\[?\s{0,9}\{\s{0,9}("|$)|\[$')
_MARKUP_START = re.compile(
    r"<(\?xml|!doctype|html|head|body|tmx|srcset|refset|tstset|dataset|corpus|doc)\b", re.IGNORECASE
)
_TAG = re.compile(r"</?[a-z][^<>]*>", re.IGNORECASE)
_TIMES = re.compile(r"(\d{1,3}:)?\d{1,2}:\d{1,2}[.,]\d{1,3} --> \d")


def refuse_markup(path: Path, columns: str = "text=0", *, tables: bool = False) -> None:
    """Raises for a file whose first lines are not sentences; `tables` refuses tables too.

    `columns` is what a user gives to say that the lines are sentences. SGM files and files
    that cannot be read pass: their reader handles them.
    """
    if format_suffix(path) in SGM:
        return
    with suppress(BrokenFile, *READ_ERRORS):
        with open_binary(path) as file:
            start = file.read(BLOCK)
        lines = start.decode("utf-8", "replace").removeprefix("\ufeff").splitlines()
        if len(start) == BLOCK and len(lines) > 1:
            lines.pop()  # cut in the middle
        kind = content_kind(lines, tables=tables)
        if kind is not None:
            raise XlsrError(
                f"'{path}' holds {kind}, not plain text. Give the file the suffix of its format or convert it; if its "
                f"lines are the sentences, say so by `columns` ({columns})."
            )


def content_kind(lines: Sequence[str], *, tables: bool = False) -> str | None:
    """What the lines are instead of sentences, in words; None for sentences.

    Examples:
        >>> content_kind(['{"text": "a"}', '{"text": "b"}']), content_kind(["<p>one</p>", "two", "three"])
        ('JSON', None)
    """
    filled = list(filter(None, map(str.strip, lines)))
    if not filled:
        return None
    first = filled[0]
    if _JSON_START.match(first) and (len(filled) == 1 or _JSON_START.match(filled[1]) or _is_json(filled)):
        return "JSON"
    if _MARKUP_START.match(first) or _share(_TAG, filled) > 0.5:
        return "markup"
    if first == "WEBVTT" or _share(_TIMES, filled) > 0.1:
        return "subtitles"
    tabs = {line.count("\t") for line in lines if line.strip()}
    if tables and len(filled) >= FEWEST and len(tabs) == 1 and tabs != {0}:
        return "a table with tabs"
    return None


def _share(pattern: re.Pattern[str], lines: Sequence[str]) -> float:
    """The share of lines that begin with a pattern; 0 for too few lines."""
    return sum(map(bool, map(pattern.match, lines))) / len(lines) if len(lines) >= FEWEST else 0.0


def _is_json(lines: Sequence[str]) -> bool:
    """Whether the lines begin as a document does whose parts are on lines of their own."""
    return re.match(r'["\]}{]', lines[1]) is not None
