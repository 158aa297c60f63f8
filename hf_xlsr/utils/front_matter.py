"""Metadata of model cards, which may come from anyone."""

from __future__ import annotations

import re
from typing import Any

import yaml

LARGEST = 1 << 16  # characters


class _Loader(yaml.SafeLoader):
    """Without aliases, by which a few lines expand to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases")
        return super().compose_node(parent, index)


def front_matter(text: str) -> dict[str, str | list[str]]:
    """The strings and lists of strings in a card's YAML header; empty if it is invalid, too long, or uses aliases.

    Examples:
        >>> front_matter("---\\nlicense: mit\\ntags: [a, b]\\nsize: 3\\n---\\n# A model")
        {'license': 'mit', 'tags': ['a', 'b']}
    """
    header = re.match(r"---\s*\n(.*?)\n---\s*$", text[:LARGEST], re.DOTALL | re.MULTILINE)
    try:
        found = yaml.load(header[1], _Loader) if header else None  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    values = found.items() if isinstance(found, dict) else ()
    return {
        str(key): value
        for key, value in values
        if isinstance(value, str) or (isinstance(value, list) and all(isinstance(part, str) for part in value))
    }
