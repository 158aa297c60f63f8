"""Early stopping on the dev metric of a recipe: it stops, keeps the best, and counts on after a stop."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import tiny_encoder
from rich.console import Console
from safetensors.torch import load_file

from hf_xlsr.runs.methods import sentence_encoder
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.utils.errors import XlsrError

METRIC = "dev-tatoeba/en-fr/dev/accuracy"
SCORES = [0.5, 0.9, 0.8, 0.9, 0.7, 1.0]  # the best is that of step 4; three are no better: over at step 10


@pytest.fixture
def recipe(write_pairs: Any, tokenizer: Any, tmp_path: Path) -> Path:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    path = tmp_path / "toy.yaml"
    path.write_text(
        "method: lightweight\nlanguages: [en, fr]\n"
        f"data: {{train: {{path: {write_pairs(count=48)}}}, dev: {{path: {write_pairs('dev.tsv', 8, seed=2)}}},\n"
        "  max_length: 32, cleaning: [normalize]}\n"
        f"tokenizer: {{path: {tmp_path / 'tokenizer'}}}\n"
        f"model: {{encoder: {tiny_encoder(len(tokenizer))}}}\n"
        "training: {max_steps: 20, per_device_train_batch_size: 16, learning_rate: 1e-2, logging_steps: 2,\n"
        "  eval_strategy: steps, eval_steps: 2, save_steps: 2, precision: float32, disable_tqdm: true,\n"
        f"  early_stopping_patience: 3, metric_for_best_model: {METRIC}}}\n",
        "utf-8",
    )
    return path


def run(recipe: Path, output: Path, *more: str) -> dict[str, torch.Tensor]:
    (resolved,) = load_runs(str(recipe), ["--output_dir", str(output), *more])
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
            if split == "dev" and type(encoder).__name__ == "LiveEncoder":
                found[METRIC] = next(waiting)
            return found

        monkeypatch.setattr(method, "evaluate", scored)

    return script


def test_it_stops_and_ends_with_the_best(recipe: Path, scripted: Any, tmp_path: Path) -> None:
    scripted(SCORES)
    final = run(recipe, tmp_path / "run")
    assert steps(tmp_path / "run") == 10
    best = load_file(tmp_path / "run" / "training" / "checkpoint-4" / "model.safetensors")
    assert final.keys() == best.keys() and all(torch.equal(value, best[name]) for name, value in final.items())


@pytest.mark.parametrize(("killed_after", "left"), [(6, [0.9, 0.7, 1.0]), (8, [0.7, 1.0]), (10, [])])
def test_the_count_goes_on_after_a_stop(
    killed_after: int, left: list[float], recipe: Path, scripted: Any, tmp_path: Path
) -> None:
    scripted(SCORES)
    whole = run(recipe, tmp_path / "whole")
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
    ("more", "message"),
    [
        (
            ["--metric_for_best_model", "dev-tatoeba/en-fr/dev/acuracy"],
            "training.metric_for_best_model .*did you mean 'dev-tatoeba/en-fr/dev/accuracy'",
        ),
        (["--metric_for_best_model", "null"], "early_stopping_patience needs metric_for_best_model"),
        (["--data.dev", "null"], "training.early_stopping_patience"),
        (["--save_steps", "3"], "saving steps to be a round multiple of the evaluation"),
        (
            ["--metric_for_best_model", "null", "--early_stopping_patience", "0", "--load_best_model_at_end", "true"],
            "training.load_best_model_at_end",
        ),
    ],
)
def test_mistakes_are_told_before_data_are_prepared(
    more: list[str], message: str, recipe: Path, tmp_path: Path
) -> None:
    with pytest.raises(XlsrError, match=message):
        run(recipe, tmp_path / "run", *more)
    assert not (tmp_path / "run").exists()


def test_names_of_metrics_without_a_model(recipe: Path) -> None:
    for protocol in ("tatoeba", "xsr"):
        (resolved,) = load_runs(str(recipe), ["--evaluation.protocol", protocol])
        names = resolved.metric_names(resolved.evaluation_sets())
        assert any(name.startswith(f"dev-{protocol}/en-fr/dev/") for name in names)
