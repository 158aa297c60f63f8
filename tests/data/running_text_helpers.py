"""Neighbours in running text, and a writer of its files, shared by tests."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hf_xlsr.data.running_text import mark_neighbours, read_running_text


def neighbours(rows: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    """The pairs in marked rows."""
    return [(row["text"], after["text"]) for row, after in itertools.pairwise(rows) if row["continues"]]


def pairs_of(sources: Any, languages: Sequence[str] = ("en",), **options: Any) -> list[tuple[str, str]]:
    counts = {"documents": 0, "single": 0}
    return neighbours(list(mark_neighbours(read_running_text(sources, languages=languages, **options), counts)))


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return str(path)
