"""By default a training logs 50 to 100 losses, and no fewer than its steps if it is shorter."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import seven_trainers
import two_process_recipes
from rich.console import Console
from seven_trainers import KINDS, arguments_of, trainer_of
from transformers import TrainerState

from hf_xlsr.evaluation import plots
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.trainers.arguments import LOGGED_SHARE

STEPS = 84
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(seven_trainers.TINY, "logging_steps")


def finite_losses(log: list[dict[str, Any]]) -> list[float]:
    return [entry["loss"] for entry in log if math.isfinite(entry.get("loss", math.nan))]


def test_the_number_of_losses_for_every_number_of_steps() -> None:
    for steps in range(1, 3000):
        state = TrainerState()
        arguments = SimpleNamespace(logging_steps=LOGGED_SHARE, eval_steps=None, save_steps=None)
        state.compute_steps(arguments, steps)
        count = steps // state.logging_steps
        assert min(steps, 50) <= count <= 100, steps


@pytest.mark.sample(1)
@EVERY_KIND
def test_every_trainer_logs_a_curve(kind: str, tmp_path: Path) -> None:
    trainer = trainer_of(kind, tmp_path, settings={"max_steps": STEPS})
    trainer.train()
    assert len(finite_losses(trainer.state.log_history)) >= 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipes")
    two_process_recipes.write_recipes(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, STEPS])
@pytest.mark.parametrize("kind", KINDS)
def test_the_plot_of_every_run_shows_it(
    kind: str, steps: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    drawn: list[float] = []
    plot_curves = plots.plot_curves

    def record(path: Path, log: list[dict[str, Any]]) -> None:
        drawn.extend(finite_losses(log))
        plot_curves(path, log)

    monkeypatch.setattr(plots, "plot_curves", record)
    options = ["--output_dir", str(tmp_path / "run"), "--max_steps", str(steps), "--logging_steps", "null"]
    options += ["--eval_strategy", "no", "--save_strategy", "no"]
    (run,) = load_runs(str(folder / f"{kind}Trainer.yaml"), options)
    train_recipe(run, Console(quiet=True))

    assert len(drawn) >= min(steps, 50)
    assert drawn == finite_losses(json.loads((tmp_path / "run" / "training" / "log.json").read_text("utf-8")))
    assert (tmp_path / "run" / "loss.png").is_file()


@pytest.mark.sample(1)
@EVERY_KIND
def test_a_resume_finds_the_same_arguments(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("transformers.trainer_utils.logger.warning_once", warnings.append)
    settings = {"save_strategy": "steps", "save_steps": 2}
    trainer_of(kind, tmp_path, settings=settings).train()

    resumed = trainer_of(kind, tmp_path, settings=settings)
    resumed.train(str(tmp_path / "checkpoint-2"))
    assert [warning for warning in warnings if "logging_steps" in warning] == []
    assert resumed.args.logging_steps == LOGGED_SHARE
    assert len(finite_losses(resumed.state.log_history)) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_evaluations_do_not_follow_the_default(kind: str, tmp_path: Path) -> None:
    assert arguments_of(kind, tmp_path, eval_strategy="steps").eval_steps == 500
    assert arguments_of(kind, tmp_path, eval_strategy="steps", logging_steps=7).eval_steps == 7
    assert arguments_of(kind, tmp_path, eval_strategy="steps", eval_steps=3).eval_steps == 3
