"""A writer of tables and a reader of the inputs of an evaluation, shared by tests."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from hf_xlsr.evaluation.protocol import PROTOCOLS, DataOptions


def write_tsv(path: Path, rows: list[str]) -> str:
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return str(path)


def read(protocol: str, *data: str, **options: Any) -> Any:
    """Reads as the command does: options of data, and those of the protocol."""
    own = {field.name: options.pop(field.name) for field in fields(DataOptions) if field.name in options}
    return PROTOCOLS[protocol].read(PROTOCOLS[protocol], DataOptions(data, **own), options)


def texts(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


def bucc_files(folder: Path) -> dict[str, Any]:
    """Options of protocol `bucc` with three sentences a side, of which one pair is gold."""
    for part in ("train", "test"):
        for end in ("de", "en"):
            write_tsv(folder / f"{part}.{end}", [f"{part}-{end}-{n}\t{end} {part} {n}" for n in range(3)])
        write_tsv(folder / f"{part}.gold", [f"{part}-de-0\t{part}-en-1"])
    test, train = ([str(folder / f"{part}.{end}") for end in ("de", "en", "gold")] for part in ("test", "train"))
    return {"data": tuple(test[:2]), "gold": test[2], "tune": tuple(train[:2]), "tune_gold": train[2]}
