"""The code blocks of Markdown pages."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass
class Block:
    """A fenced block: its page, the line of its fence, its tag, its text, and the plain text right behind it."""

    page: str
    line: int
    tag: str
    text: str
    shown: str | None = None


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text("utf-8")
    blocks: list[Block] = []
    end = 0
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        block = Block(page.name, line, match[1].strip(), match[2])
        if blocks and block.tag == "text" and not text[end : match.start()].strip():
            blocks[-1].shown = block.text
        blocks.append(block)
        end = match.end()
    return blocks


def commands_of(text: str) -> list[list[str]]:
    """The words of each command of a shell block; lines that end in a backslash go on."""
    commands = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            commands.append(words)
    return commands
