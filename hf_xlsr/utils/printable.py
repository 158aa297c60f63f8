"""Text of others as people may see it: in a terminal, a log, Markdown, a table of a spreadsheet, a picture.

Escape sequences move the cursor, rename the window or hide lines; marks of direction show a text in another order than
programs read it; a cell that begins with an equals sign is a formula. Files that programs read keep the exact text.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

# Without a width, but they change the form of letters in Persian and Hindi and join emoji.
JOINERS = "\u200c\u200d"
# Where a spreadsheet begins a cell, by its language also after a semicolon, and then takes the text for a formula. East
# Asian ones take the wide signs too.
_FORMULA = re.compile(r"((?:^|;)\s*)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])")


def printable(value: object) -> str:
    """The text of a value without control characters, marks of direction and what else has no form; lines stay.

    Examples:
        >>> printable("a\\x1b[2Jb\\u202ec\\td\\ne")
        'a[2Jbc\\td\\ne'
    """
    text = str(value)
    if text.isprintable():
        return text
    characters = []
    for character in text:
        if character.isprintable() or character in "\n\t" or character in JOINERS:
            characters.append(character)
        elif character.isspace():
            characters.append(" ")
    return "".join(characters)


def printable_line(value: object) -> str:
    """`printable` on one line, with single spaces.

    Examples:
        >>> printable_line(" a\\r\\nb\\u2028c ")
        'a b c'
    """
    return printable(" ".join(str(value).split()))


def csv_text(rows: Sequence[Mapping[str, Any]], *, header: bool = True) -> str:
    """Rows of equal keys as CSV, in which no text is a formula; numbers stay numbers.

    Examples:
        >>> csv_text([{"encoder": "=1+1", "value": -0.5}])
        "encoder,value\\r\\n'=1+1,-0.5\\r\\n"
    """
    stream = io.StringIO()
    writer = csv.writer(stream)
    if rows and header:
        writer.writerow(map(_csv_cell, rows[0]))
    for row in rows:
        writer.writerow(map(_csv_cell, row.values()))
    return stream.getvalue()


def _csv_cell(value: Any) -> Any:
    """A value of a CSV file; a quote before a text that would be a formula makes it one that is shown."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = printable_line(value)
    try:
        float(text)
    except ValueError:
        return _FORMULA.sub(r"\1'", text)
    return text
