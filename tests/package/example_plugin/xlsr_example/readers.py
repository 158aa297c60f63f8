"""A reader of blocks of lines: `en: good day`, then `de: guten Tag`, then an empty line."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from hf_xlsr.data.formats.lines import open_binary
from hf_xlsr.data.formats.reading import register_reader


@register_reader("blocks", suffixes=[".blocks"])
def read_blocks(path: Path) -> Iterator[dict[str, str]]:
    """Yields the texts of each block by the names before the colons."""
    block: dict[str, str] = {}
    with open_binary(path) as file:
        for line in io.TextIOWrapper(file, encoding="utf-8"):
            name, colon, text = line.partition(":")
            if colon:
                block[name.strip()] = text.strip()
            elif block:
                yield block
                block = {}
    if block:
        yield block
