"""Text of model cards: values escaped for Markdown, HTML, YAML and templates, and short cards."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from huggingface_hub import ModelCardData

from hf_xlsr.utils.markdown import escape_markdown
from hf_xlsr.utils.printable import printable, printable_line
from hf_xlsr.utils.redaction import redact_tokens

# Local paths: their folders name the owner of the machine, not the data.
_LOCAL = re.compile(r"(?:~|[A-Za-z]:\\|\\\\|/|\.\.?/).*", re.DOTALL)
# Before a sign that starts a list or underlines a heading.
_BLOCK_START = re.compile(r"^(\d+(?=[.)])|(?=[-+=]))")
SHOWN_FOLDERS = 1
# In the code of a card until `card_for` knows where the model goes.
PLACE = "path/to/this/folder"
EXAMPLES = ("The weather is lovely today.", "It is sunny outside.")


def one_line(value: object) -> str:
    """The text without line breaks, control characters and access tokens."""
    return printable_line(redact_tokens(" ".join(str(value).split())))


def prose(value: object) -> str:
    """Markdown that renders as the given text."""
    return _BLOCK_START.sub(r"\1\\", escape_markdown(one_line(value)))


def code(value: object, *, cell: bool = False) -> str:
    """The text as inline code; bars end a cell of a table even inside code."""
    text = one_line(value)
    fence = "`" * (_longest_run(text) + 1)
    if cell:
        text = text.replace("|", "\\|")
    if "`" in text:
        text = f" {text} "
    return fence + text + fence


def python_text(text: str) -> str:
    """The text as a Python string literal on one line, in double quotes."""
    return json.dumps(one_line(text) + " " * text.endswith(" "), ensure_ascii=False)  # a prompt ends with one


def code_block(text: str, language: str) -> str:
    """A code block with a fence longer than any in the text."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def public_path(path: object) -> str:
    """A local path without most of its folders; Hub ids, names and paths that start with a variable stay complete."""
    text = str(path)
    if not _LOCAL.fullmatch(text):
        return text
    names = [name for name in re.split(r"[\\/]", text) if name not in ("", ".", "..", "~")]
    return "/".join(["...", *names[-1 - SHOWN_FOLDERS :]])


def settings_block(settings: Mapping[str, Any]) -> str:
    """Nested settings as a YAML block; keys without a value are left out."""
    shown = {}
    for key, value in settings.items():
        if value not in (None, {}):
            shown[key] = _public(value)
    text = yaml.safe_dump(
        shown,
        sort_keys=False,
        allow_unicode=True,
        width=110,
        default_flow_style=None,
    )
    return code_block(text, "yaml")


def _public(value: Any) -> Any:
    """A nested value as YAML can hold it, whose texts are on one line, with public paths."""
    if isinstance(value, Mapping):
        return {one_line(key): _public(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_public(inner) for inner in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = str(value)
    return public_path(one_line(text)) + " " * text.endswith(" ")  # a prompt ends with a space


def card_for(card: str, place: str) -> str:
    """A card whose code loads the model from where it is pushed to.

    Examples:
        >>> card_for('model = SentenceTransformer("path/to/this/folder")', "me/encoder")
        'model = SentenceTransformer("me/encoder")'
    """
    return card.replace(f'"{PLACE}"', f'"{place}"')


def part_card(
    data: ModelCardData,
    *,
    title: str,
    paragraphs: Sequence[str],
    example: str,
    language: str = "python",
) -> str:
    """A card with metadata, a plain title, paragraphs of Markdown and an example."""
    blocks = [f"---\n{data.to_yaml()}\n---", f"# {prose(title)}", *paragraphs, code_block(example, language)]
    return printable("\n\n".join(blocks) + "\n")


def _longest_run(text: str) -> int:
    """Number of the most back quotes in a row."""
    return max(map(len, re.findall("`+", text)), default=0)
