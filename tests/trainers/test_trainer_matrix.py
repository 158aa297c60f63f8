"""What every trainer must do, for each recipe of `two_process_recipes.recipes`: a new method joins with a row there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import two_process_recipes
import yaml
from rich.console import Console
from safetensors.torch import load_file

from hf_xlsr.runs.methods import METHODS
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe

NAMES = [method.trainer_class.__name__ for method in METHODS.values()]
CARDS = {
    "LightweightTrainer": "Lightweight Cross-Lingual Sentence Representation Learning",
    "DistillationTrainer": "Knowledge Distillation",
    "DualMomentumTrainer": "Dual Momentum Contrast",
    "HictlTrainer": "On Learning Universal Representations",
    "CmlmTrainer": "Conditional Masked Language Model",
    "FineTuneTrainer": "On Learning Universal Representations",
    "TranslationTrainer": "On Learning Universal Representations",
}
# The others start from an encoder, or have tests of their own for adapters.
PRETRAINED = ["LightweightTrainer", "DistillationTrainer", "HictlTrainer", "CmlmTrainer"]


def with_dropout(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: 0.1 if key.endswith(("dropout", "dropout_prob")) else with_dropout(v) for key, v in value.items()}
    return value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and each recipe with dropout, Adam and a checkpoint every 2 of 4 steps."""
    folder = tmp_path_factory.mktemp("matrix")
    two_process_recipes.write_recipes(folder)
    for name in NAMES:
        path = folder / f"{name}.yaml"
        recipe = with_dropout(yaml.safe_load(path.read_text("utf-8")))
        recipe["training"].update(optim="adamw_torch", learning_rate=0.01, save_strategy="steps", save_steps=2)
        path.write_text(yaml.safe_dump(recipe), "utf-8")
    return folder


def run(folder: Path, name: str, output: str, *more: str, stages: Any = None) -> Path:
    path = folder / f"{name}.yaml"
    if stages:
        path = folder / f"{name}-stages.yaml"
        path.write_text((folder / f"{name}.yaml").read_text("utf-8") + yaml.safe_dump({"stages": stages}), "utf-8")
    target = folder / output / name
    for recipe in load_runs(str(path), ["--output_dir", str(target), *more]):
        train_recipe(recipe, Console(quiet=True))
    return target


@pytest.fixture(scope="module")
def finished(folder: Path) -> Any:
    """The folder of a method's run, made once."""
    runs: dict[str, Path] = {}

    def finish(name: str) -> Path:
        if name not in runs:
            runs[name] = run(folder, name, "whole")
        return runs[name]

    return finish


def weights(folder: Path, file: str = "model.safetensors") -> dict[str, torch.Tensor]:
    return load_file(folder / "training" / "final" / file)


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], but: str = "nothing") -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert name.startswith(but) or torch.equal(value, other[name]), name


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NAMES)
def test_log_results_and_card(name: str, finished: Any) -> None:
    log = json.loads((finished(name) / "training" / "log.json").read_text("utf-8"))
    losses = [entry for entry in log if "loss" in entry]
    assert len(losses) == 4 and all(any(key.startswith("loss/") for key in entry) for entry in losses)
    assert len({entry["loss"] for entry in losses}) == 4
    results = json.loads((finished(name) / "results.json").read_text("utf-8"))
    assert results["settings"]["steps"] == 4
    assert CARDS[name] in (finished(name) / "README.md").read_text("utf-8")
    assert list((finished(name) / "model").rglob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("name", PRETRAINED)
def test_run_learns(name: str, folder: Path) -> None:
    more = ["--max_steps", "150", "--save_steps", "150", "--eval_strategy", "no", "--logging_steps", "10"]
    words = ("--word_weight", "1.0", "--negative_words", "16") if name == "HictlTrainer" else ()
    target = run(folder, name, "learnt", *more, "--data.test.path", str(folder / "dev.tsv"), *words)
    metrics = json.loads((target / "results.json").read_text("utf-8"))["metrics"]
    assert metrics["dev-tatoeba/en-fr/test/accuracy"] > 0.3  # 1 in 12 by chance
    losses = [entry for entry in json.loads((target / "training" / "log.json").read_text("utf-8")) if "loss" in entry]
    parts = [key for key in losses[0] if key.startswith("loss/") and key != "loss/similarity"]  # that is 0 at first
    assert len(parts) > 1 and all(losses[-1][part] < losses[0][part] for part in parts)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NAMES)
def test_resume_is_bit_equal(name: str, folder: Path, finished: Any) -> None:
    stopped = folder / "stopped" / name
    shutil.copytree(finished(name), stopped)
    two_process_recipes.go_back(stopped)
    run(folder, name, "stopped")
    assert_equal(weights(stopped), weights(finished(name)))
    assert (stopped / "model").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_resume_with_adapters_and_gradient_cache_is_bit_equal(name: str, folder: Path) -> None:
    cached = name not in ("FineTuneTrainer", "TranslationTrainer")
    adapters = ("--adapters.rank", "2", *(("--cache_batch_size", "5") if cached else ()))
    adapters += ("--model.queue_size", "0") if name == "DistillationTrainer" else ()  # not part of their checkpoints
    whole, stopped = run(folder, name, "adapters", *adapters), folder / "stopped adapters" / name
    shutil.copytree(whole, stopped)
    two_process_recipes.go_back(stopped)
    run(folder, name, "stopped adapters", *adapters)
    saved = [weights(place, "adapter_model.safetensors") for place in (whole, stopped)]
    assert any(value.any() for key, value in saved[0].items() if "lora_B" in key)  # they start at 0
    assert_equal(*saved)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRETRAINED)
def test_stage_starts_from_the_previous_one(name: str, folder: Path) -> None:
    still = {"training": {"learning_rate": 0.0, "max_steps": 2}}
    target = run(folder, name, "stages", stages=[{"name": "one"}, {"name": "two", "set": still}])
    assert_equal(weights(target / "one"), weights(target / "two"), but="queue.")  # it takes the keys of every step


@pytest.mark.slow
@pytest.mark.parametrize("name", PRETRAINED)
def test_run_starts_from_another_run(name: str, folder: Path, finished: Any) -> None:
    more = ["--start_from", str(finished(name)), "--max_steps", "1", "--learning_rate", "0.0"]
    assert_equal(weights(run(folder, name, "started", *more)), weights(finished(name)), but="queue.")
