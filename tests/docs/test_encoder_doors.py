"""docs/encoders.md: the table says what happens to each encoder at each door."""

from __future__ import annotations

from pathlib import Path

import pytest
from encoder_doors import COMMAND, DOORS, ROWS, cell, written_cells

PAGE = Path(__file__).resolve().parents[2] / "docs" / "encoders.md"
# A cell of each kind of door and encoder that takes a second at most; the others are tried by `make test-all`.
FAST = {
    "LaBSE": ["distillation", "CMLM", "text-embeddings-inference"],
    "Qwen3-Embedding": ["lightweight", "HICTL", "translation", "prune"],
    "static-similarity": ["distillation", "export", "ONNX, int8"],
}


def test_table_has_every_encoder_and_door() -> None:
    cells = written_cells(PAGE.read_text("utf-8"))

    assert list(cells) == list(ROWS), f"write it again: {COMMAND}"
    for name, row in cells.items():
        assert list(row) == ["encoder", "modules", *DOORS], f"write it again: {COMMAND}"
        assert row["modules"] == ROWS[name].shape


def cases() -> list[object]:
    parameters = []
    for name in ROWS:
        for door in DOORS:
            marks = [] if door in FAST.get(name, ()) else [pytest.mark.slow]
            parameters.append(pytest.param(name, door, marks=marks))
    return parameters


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoders")


@pytest.mark.parametrize(("name", "door"), cases())
def test_cell_is_what_happens(name: str, door: str, folder: Path) -> None:
    written = written_cells(PAGE.read_text("utf-8"))[name][door]

    assert written == cell(name, door, folder), f"write it again: {COMMAND}"
