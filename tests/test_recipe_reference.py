"""The page of all keys is the one that the code writes, and the help of the command shows the same keys."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from hf_xlsr.runs.methods import METHODS
from hf_xlsr.runs.recipe_check import recipe_keys
from hf_xlsr.runs.reference import COMMAND, keys_help, main, reference
from hf_xlsr.utils.errors import XlsrError

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "recipes.md"
STOCK = "## `training`, arguments of transformers"


def test_the_page_is_as_the_code_writes_it(tmp_path: Path) -> None:
    """What transformers says of its own arguments is that of the tested version."""
    assert main([str(tmp_path / "page.md")]) == 0
    ours, stock = (tmp_path / "page.md").read_text("utf-8").split(STOCK)
    there, stock_there = PAGE.read_text("utf-8").split(STOCK)
    assert there == ours, f"write it again: {COMMAND}"
    if f"transformers=={transformers.__version__}\n" in (ROOT / "constraints.txt").read_text("utf-8"):
        assert stock_there == stock, f"write it again: {COMMAND}"


def test_every_key_stands_on_the_page() -> None:
    page = reference()
    for name in METHODS:
        for section, keys in recipe_keys({"method": name}).items():
            if section not in ("model.encoder", "model.encoders"):
                assert all(f"| `{key}` |" in page for key in keys), (name, section)
    assert all(line.count("|") - line.count("\\|") in (3, 5) for line in page.splitlines() if line.startswith("|"))


@pytest.mark.parametrize("name", [*METHODS, "quickstart", "moco_en_fr_open"])
def test_help_of_a_method_or_a_recipe(name: str) -> None:
    text = keys_help(name)
    assert "  learning_rate (a number; " in text and "training:" in text
    assert max(map(len, text.splitlines())) < 1200 and "  seed (a whole number; 1)" in text


def test_help_without_a_name_says_where_there_is_more() -> None:
    text = keys_help()
    assert "hf-xlsr train NAME --help" in text and "  max_length (a whole number; 200)" in text
    with pytest.raises(XlsrError, match="'quikstart' is no method and no recipe; did you mean 'quickstart'"):
        keys_help("quikstart")
