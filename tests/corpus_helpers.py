"""The card of a dataset of pairs, and what its publisher states."""

from __future__ import annotations

from typing import Any

import yaml

from hf_xlsr.export import CorpusMetadata

METADATA = CorpusMetadata("cc-by-sa-4.0", {"Wikipedia": "cc-by-sa-4.0"}, languages=("en", "fr"))


def header_of(card: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return content


def section(card: str, title: str) -> str:
    return card.split(f"\n## {title}\n")[1].split("\n## ")[0]
