"""docs/recipes.md and docs/command.md are what the code writes."""

from __future__ import annotations

from pathlib import Path

import transformers

from docs import command
from docs.recipes import COMMAND, main

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "recipes.md"
STOCK = "## `training`, arguments of transformers"


def test_page_is_up_to_date(tmp_path: Path) -> None:
    """The help of transformers' own arguments is that of the tested version."""
    written = tmp_path / "page.md"
    assert main([str(written)]) == 0
    expected, expected_stock = written.read_text("utf-8").split(STOCK)
    keys, stock = PAGE.read_text("utf-8").split(STOCK)
    assert keys == expected, f"write it again: {COMMAND}"

    constraints = (ROOT / "constraints.txt").read_text("utf-8")
    if f"transformers=={transformers.__version__}\n" in constraints:
        assert stock == expected_stock, f"write it again: {COMMAND}"

    for line in keys.splitlines():
        if line.startswith("|"):
            assert line.count("|") - line.count("\\|") == 5


def test_page_of_options_is_up_to_date() -> None:
    page = ROOT / "docs" / "command.md"
    assert page.read_text("utf-8") == command.reference(), f"write it again: {command.COMMAND}"
