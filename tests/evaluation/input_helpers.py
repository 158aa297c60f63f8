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
    data_options = {field.name: options.pop(field.name) for field in fields(DataOptions) if field.name in options}
    return PROTOCOLS[protocol].read(PROTOCOLS[protocol], DataOptions(data, **data_options), options)


def texts(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


def bucc_files(folder: Path) -> dict[str, Any]:
    """Options of protocol `bucc` with three sentences a side, of which one pair is gold."""
    files = {}
    for split in ("train", "test"):
        sides = []
        for code in ("de", "en"):
            lines = [f"{split}-{code}-{n}\t{code} {split} {n}" for n in range(3)]
            sides.append(write_tsv(folder / f"{split}.{code}", lines))
        gold = write_tsv(folder / f"{split}.gold", [f"{split}-de-0\t{split}-en-1"])
        files[split] = (tuple(sides), gold)

    data, gold = files["test"]
    tune, tune_gold = files["train"]
    return {"data": data, "gold": gold, "tune": tune, "tune_gold": tune_gold}
