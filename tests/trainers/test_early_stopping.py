"""Early stopping on the dev metric of a recipe: it stops, keeps the best, and counts on after a stop."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import two_process_recipes
from rich.console import Console
from safetensors.torch import load_file

from hf_xlsr.runs.methods import sentence_encoder
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.utils.errors import XlsrError

METRIC = "dev-tatoeba/en-fr/dev/accuracy"
SCORES = [0.5, 0.9, 0.8, 0.9, 0.7, 1.0]  # the best is that of step 4; three are no better: over at step 10


WORDS = ("--max_steps", "20", "--early_stopping_patience", "3", "--metric_for_best_model", METRIC)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluated and saved every two steps."""
    folder = tmp_path_factory.mktemp("recipes")
    two_process_recipes.write_recipes(folder)
    return folder / "LightweightTrainer.yaml"


def run(recipe: Path, output: Path, *more: str) -> dict[str, torch.Tensor]:
    (resolved,) = load_runs(str(recipe), ["--output_dir", str(output), *WORDS, *more])
    train_recipe(resolved, Console(quiet=True))
    return load_file(output / "training" / "final" / "model.safetensors")


def steps(output: Path) -> int:
    return int(json.loads((output / "results.json").read_text("utf-8"))["settings"]["steps"])


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has dev sets give the scores of a list, in order."""
    method = sentence_encoder.SentenceEncoderMethod
    measure = method.evaluate

    def script(scores: list[float]) -> None:
        waiting = iter(scores)

        def scored(self: Any, encoder: Any, rows: Any, split: str) -> dict[str, float]:
            found = measure(self, encoder, rows, split)
            if split == "dev" and type(encoder).__name__ == "SentenceTransformer":  # not the cached export
                found[METRIC] = next(waiting)
            return found

        monkeypatch.setattr(method, "evaluate", scored)

    return script


@pytest.mark.slow
@pytest.mark.parametrize(("killed_after", "left"), [(6, [0.9, 0.7, 1.0]), (8, [0.7, 1.0]), (10, [])])
def test_patience_goes_on_after_a_resume(
    killed_after: int, left: list[float], recipe: Path, scripted: Any, tmp_path: Path
) -> None:
    scripted(SCORES)
    whole = run(recipe, tmp_path / "whole")
    best = load_file(tmp_path / "whole" / "training" / "checkpoint-4" / "model.safetensors")
    assert whole.keys() == best.keys() and all(torch.equal(value, best[name]) for name, value in whole.items())
    stopped = tmp_path / "stopped"
    shutil.copytree(tmp_path / "whole", stopped)
    for checkpoint in stopped.glob("training/checkpoint-*"):
        if int(checkpoint.name.rsplit("-", 1)[1]) > killed_after:
            shutil.rmtree(checkpoint)
    shutil.rmtree(stopped / "training" / "final")
    scripted(left)
    again = run(recipe, stopped)
    assert steps(stopped) == 10
    assert all(torch.equal(value, again[name]) for name, value in whole.items())


@pytest.mark.parametrize(
    ("more", "key"),
    [
        (["--metric_for_best_model", "dev-tatoeba/en-fr/dev/acuracy"], "metric_for_best_model"),
        (["--metric_for_best_model", "null"], "needs a metric"),
        (["--data.dev", "null"], "data.dev"),
        (["--save_steps", "3"], "saving steps"),
    ],
)
def test_invalid_early_stopping(more: list[str], key: str, recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match=key):
        run(recipe, tmp_path / "run", *more)
    assert not (tmp_path / "run").exists()
