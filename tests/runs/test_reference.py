"""docs/recipes.md is what the code writes, and `--help` shows the same keys."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from hf_xlsr.runs.methods import METHODS
from hf_xlsr.runs.reference import COMMAND, keys_help, main
from hf_xlsr.utils.errors import XlsrError

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "recipes.md"
STOCK = "## `training`, arguments of transformers"


def test_page_is_up_to_date(tmp_path: Path) -> None:
    """The help of transformers' own arguments is that of the tested version."""
    assert main([str(tmp_path / "page.md")]) == 0
    ours, stock = (tmp_path / "page.md").read_text("utf-8").split(STOCK)
    there, stock_there = PAGE.read_text("utf-8").split(STOCK)
    assert there == ours, f"write it again: {COMMAND}"
    if f"transformers=={transformers.__version__}\n" in (ROOT / "constraints.txt").read_text("utf-8"):
        assert stock_there == stock, f"write it again: {COMMAND}"
    assert all(line.count("|") - line.count("\\|") == 5 for line in there.splitlines() if line.startswith("|"))


def test_help_shows_the_keys() -> None:
    for name in [*METHODS, "quickstart", "moco_en_fr_open"]:
        text = keys_help(name)
        assert "  learning_rate (float; " in text and "training:" in text and "  seed (int >= 0; 1)" in text
    assert "hf-xlsr train NAME --help" in keys_help() and "  max_length (int >= 1; 200)" in keys_help()
    with pytest.raises(XlsrError, match="quickstart"):
        keys_help("quikstart")
