"""A writer of tables and a reader of the inputs of an evaluation, shared by tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_xlsr.evaluation.inputs import read_inputs
from hf_xlsr.evaluation.registry import PROTOCOLS
from hf_xlsr.evaluation.request import Request


def write_tsv(path: Path, rows: list[str]) -> str:
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return str(path)


def read(protocol: str, *data: str, **options: Any) -> Any:
    return read_inputs(Request(model="m", protocol=protocol, data=data, **options), PROTOCOLS[protocol])


def texts(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]
