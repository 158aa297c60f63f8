"""`hf-xlsr card`: a card made again from the folder of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import failing
from hub_helpers import train, write_recipe
from huggingface_hub import ModelCard

from hf_xlsr.cli import main
from hf_xlsr.runs.card import card_of_run
from hf_xlsr.utils.errors import XlsrError


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the lightweight method."""
    folder = tmp_path_factory.mktemp("light")
    return train(write_recipe(folder), folder / "run")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """What a card is made of."""
    (tmp_path / "run" / "training").mkdir(parents=True)
    (tmp_path / "run" / "model").mkdir()
    for name in ("README.md", "results.json", "training/recipe.json", "model/README.md"):
        (tmp_path / "run" / name).write_bytes((finished / name).read_bytes())
    return tmp_path / "run"


def card(*words: Any) -> int:
    return main(["card", *map(str, words)])


def test_card_is_written_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "README.md").read_text("utf-8")
    for name in ("README.md", "model/README.md"):
        (run / name).unlink()
    assert card(run) == 0
    assert (run / "README.md").read_text("utf-8") == before == (run / "model" / "README.md").read_text("utf-8")
    assert capsys.readouterr().out.split() == [str(run / "README.md"), str(run / "model" / "README.md")]
    assert "62.5 %" in before or "test-tatoeba/en-fr/test/accuracy" in before


def test_options_of_the_card(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "card.md"
    before = (run / "README.md").read_text("utf-8")
    words = ("--license", "MIT", "--base-model", "a/b", "c/d", "--datasets", "e/f")
    assert card(run, "--output", output, *words) == 0
    data = ModelCard(output.read_text("utf-8")).data
    assert (data.license, data.base_model, data.datasets) == ("mit", ["a/b", "c/d"], ["e/f"])
    assert "under `mit`" in output.read_text("utf-8") and (run / "README.md").read_text("utf-8") == before


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("results.json", None),
        ("results.json", {"metrics": {}, "settings": {}}),
        ("training/recipe.json", []),
        ("training/recipe.json", {"method": "none"}),
    ],
)
def test_invalid_run(file: str, content: Any, run: Path) -> None:
    (run / file).unlink()
    if content is not None:
        (run / file).write_text(json.dumps(content), "utf-8")
    with pytest.raises(XlsrError):
        card_of_run(run)


def test_output_that_is_a_folder(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "folder" in failing(capsys, "card", str(run), "--output", str(tmp_path))
