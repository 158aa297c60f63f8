"""`hf-xlsr card`: a card made again from the folder of a run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from hub_helpers import train, write_recipe
from huggingface_hub import ModelCard

from hf_xlsr.cli import publish as cli_hub
from hf_xlsr.runs.card import card_of_run
from hf_xlsr.utils.errors import XlsrError


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("carded")
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
    parser = argparse.ArgumentParser()
    cli_hub.configure_card(parser)
    return cli_hub.card(parser.parse_args(list(map(str, words))), [])


def test_the_same_card_comes_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "README.md").read_text("utf-8")
    for name in ("README.md", "model/README.md"):
        (run / name).unlink()
    assert card(run) == 0
    assert (run / "README.md").read_text("utf-8") == before == (run / "model" / "README.md").read_text("utf-8")
    assert capsys.readouterr().out.split() == [str(run / "README.md"), str(run / "model" / "README.md")]
    assert "62.5 %" in before or "test-tatoeba/en-fr/test/accuracy" in before


def test_what_is_chosen_afterwards(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "card.md"
    before = (run / "README.md").read_text("utf-8")
    words = ("--license", "MIT", "--base-model", "a/b", "c/d", "--datasets", "e/f")
    assert card(run, "--output", output, *words) == 0
    data = ModelCard(output.read_text("utf-8")).data
    assert (data.license, data.base_model, data.datasets) == ("mit", ["a/b", "c/d"], ["e/f"])
    assert "under `mit`" in output.read_text("utf-8") and (run / "README.md").read_text("utf-8") == before


def test_hardware_is_told_where_it_is_known(run: Path) -> None:
    results = json.loads((run / "results.json").read_text("utf-8"))
    results["settings"]["hardware"] = "NVIDIA H200"
    (run / "results.json").write_text(json.dumps(results), "utf-8")
    assert "| hardware | NVIDIA H200 |" in card_of_run(run)


def test_a_run_of_an_older_version(run: Path) -> None:
    recipe = json.loads((run / "training" / "recipe.json").read_text("utf-8"))
    for section in ("adapters", "export", "evaluation"):
        recipe.pop(section, None)
    (run / "training" / "recipe.json").write_text(json.dumps(recipe), "utf-8")
    assert "torch.nn.functional.normalize" in card_of_run(run)


def test_mistakes_are_sentences(run: Path, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match="is a folder; give a file"):
        card(run, "--output", tmp_path)
    with pytest.raises(XlsrError, match="recipe.json is missing"):
        card_of_run(tmp_path)
    results = (run / "results.json").read_text("utf-8")
    (run / "results.json").unlink()
    with pytest.raises(XlsrError, match="results.json is missing"):
        card_of_run(run)
    (run / "results.json").write_text(json.dumps({"metrics": {}, "settings": {}}), "utf-8")
    with pytest.raises(XlsrError, match="dimension"):
        card_of_run(run)
    (run / "results.json").write_text(results, "utf-8")
    for text in ("{", "[]", '{"method": "none"}'):
        (run / "training" / "recipe.json").write_text(text, "utf-8")
        with pytest.raises(XlsrError):
            card_of_run(run)
