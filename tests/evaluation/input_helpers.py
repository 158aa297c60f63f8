"""A writer of tables and a reader of the inputs of an evaluation, shared by tests."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from hf_xlsr.evaluation.protocol import PROTOCOLS, DataOptions

WIDE = {
    "en": ["one", "two", "three"],
    "de": ["eins", "zwei", "drei"],
    "fr": ["un", None, "trois"],
    "kind": ["a", "b", "a"],
}
TMX = "<tmx><body><tu><tuv xml:lang='en'><seg>day</seg></tuv><tuv xml:lang='de'><seg>Tag</seg></tuv></tu></body></tmx>"


def topic_rows(column: str, *splits: str) -> list[str]:
    """Three rows of each split in English and German; the label is in a column."""
    rows = [f"lang\tsplit\ttext\t{column}"]
    for tag in ("eng_Latn", "deu_Latn"):
        for split in splits:
            rows += [f"{tag}\t{split}\t{tag} {split} {n}\t{n % 2}" for n in range(3)]
    return rows


def write_tsv(path: Path, rows: list[str]) -> str:
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return str(path)


def read(protocol: str, *data: str, **options: Any) -> Any:
    """Reads as the command does: options of data, and those of the protocol."""
    data_options = {}
    for field in fields(DataOptions):
        if field.name in options:
            data_options[field.name] = options.pop(field.name)

    declaration = PROTOCOLS[protocol]
    return declaration.read(declaration, DataOptions(data, **data_options), options)


def texts(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


def bucc_files(folder: Path) -> dict[str, Any]:
    """Options of protocol `bucc` with three sentences a side, of which one pair is gold."""
    files = {}
    for split in ("train", "test"):
        for code in ("de", "en"):
            name = f"{split}.{code}"
            lines = [f"{split}-{code}-{n}\t{code} {split} {n}" for n in range(3)]
            files[name] = write_tsv(folder / name, lines)
        name = f"{split}.gold"
        files[name] = write_tsv(folder / name, [f"{split}-de-0\t{split}-en-1"])

    return {
        "data": (files["test.de"], files["test.en"]),
        "gold": files["test.gold"],
        "tune": (files["train.de"], files["train.en"]),
        "tune_gold": files["train.gold"],
    }
