"""docs/architecture.md counts the files of its walks right, and names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
FILE = re.compile(r"`((?:[\w.]+/)*\w+\.py)`")


TO_THE_LOSS = "From a sentence pair to the loss"
TO_A_METRIC = "From a text to its embedding and a metric"


def walk_of(title: str) -> tuple[str, list[str]]:
    """A section, and the files that it names."""
    section = PAGE.read_text("utf-8").split(f"## {title}\n")[1].split("\n## ")[0]
    return section, list(dict.fromkeys(FILE.findall(section)))


@pytest.mark.parametrize("title", [TO_THE_LOSS, TO_A_METRIC])
def test_a_walk_has_as_many_files_as_the_page_says(title: str) -> None:
    section, files = walk_of(title)
    stated = re.search(r"The walk has (\d+) files", section)
    assert stated
    assert len(files) == int(stated[1])
    for name in files:
        assert (ROOT / name).is_file() or list(ROOT.glob(f"hf_xlsr/*/{name}")), name


def test_the_embedding_is_made_where_the_page_says() -> None:
    _, files = walk_of(TO_A_METRIC)
    assert files[7] == "hf_xlsr/encoders/encoding.py"


def test_the_trainer_comes_after_as_many_files_as_the_page_says() -> None:
    section, files = walk_of(TO_THE_LOSS)
    stated = re.search(r"(\d+) of them before the trainer", section)
    assert stated
    assert files.index("trainers/base.py") == int(stated[1])
