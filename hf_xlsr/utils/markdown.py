"""Markdown: text, tables, and the metadata of model cards, which may come from anyone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.printable import printable_line
from hf_xlsr.utils.yaml import parse_yaml

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&])")
LARGEST = 1 << 16  # characters
FENCE = "---"


def escape_markdown(text: str) -> str:
    """The text on one line with Markdown escaped, also for cells of tables.

    Examples:
        >>> escape_markdown("a|b <i> 2*3*4")
        'a\\\\|b \\\\<i\\\\> 2\\\\*3\\\\*4'
    """
    return SPECIAL.sub(r"\\\1", printable_line(text))


def markdown_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers_from: int = 1,
) -> list[str]:
    """Lines of a table from cells in Markdown; columns after `numbers_from` are aligned to the right.

    Examples:
        >>> print("\\n".join(markdown_table(["model", "accuracy"], [["ours", "**98.0**"]])))
        | model | accuracy |
        |---|---:|
        | ours | **98.0** |
    """
    marks = ["---"] * numbers_from + ["---:"] * (len(header) - numbers_from)
    header_line, *row_lines = ["| " + " | ".join(row) + " |" for row in (header, *rows)]
    return [header_line, f"|{'|'.join(marks[: len(header)])}|", *row_lines]


def card_header(text: str) -> dict[str, Any]:
    """The YAML header of a card; empty if it is missing, invalid or too long."""
    first_line, *lines = map(str.rstrip, text[:LARGEST].split("\n"))
    if first_line != FENCE or FENCE not in lines:
        return {}
    try:
        content = parse_yaml("\n".join(lines[: lines.index(FENCE)]), "card")
    except XlsrError:
        return {}
    return content if isinstance(content, dict) else {}


def front_matter(text: str) -> dict[str, str | list[str]]:
    """The strings and lists of strings in a card's YAML header; empty if it is invalid or too long.

    Examples:
        >>> front_matter("---\\nlicense: mit\\ntags: [a, b]\\nsize: 3\\n---\\n# A model")
        {'license': 'mit', 'tags': ['a', 'b']}
    """
    content = card_header(text)
    values: dict[str, str | list[str]] = {}
    for key, value in content.items():
        items = value if isinstance(value, list) else [value]
        if all(isinstance(item, str) for item in items):
            values[str(key)] = value
    return values
