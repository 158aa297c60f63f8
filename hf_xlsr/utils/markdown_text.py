"""Text and tables in GitHub's Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&])")


def escape_markdown(text: str) -> str:
    """The text on one line with Markdown escaped, also for cells of tables.

    Examples:
        >>> escape_markdown("a|b <i> 2*3*4")
        'a\\\\|b \\\\<i\\\\> 2\\\\*3\\\\*4'
    """
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int = 1) -> list[str]:
    """Lines of a table from cells in Markdown; columns after `numbers_from` are aligned to the right.

    Examples:
        >>> print("\\n".join(markdown_table(["model", "accuracy"], [["ours", "**98.0**"]])))
        | model | accuracy |
        |---|---:|
        | ours | **98.0** |
    """
    marks = ["---" if place < numbers_from else "---:" for place in range(len(header))]
    cells = ["| " + " | ".join(row) + " |" for row in (header, *rows)]
    return [cells[0], f"|{'|'.join(marks)}|", *cells[1:]]
