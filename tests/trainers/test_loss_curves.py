"""Pinned losses of 50 steps of every trainer: a silent change of data, model, loss or optimiser moves them.

Written by `PYTHONPATH=tests:tests/trainers python tests/trainers/test_loss_curves.py FOLDER`.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import pytest
import two_process_recipes
from rich.console import Console

from hf_xlsr.runs.methods import METHODS
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe

PINNED = Path(__file__).with_name("loss_curves.json")
# Processors sum in different orders: after 50 steps losses differ by some thousandths.
TOLERANCE = 0.02
OPTIONS = (
    "--max_steps 50 --logging_steps 5 --eval_strategy no --save_strategy no --learning_rate 0.02 --seed 7".split()
)


def curve(folder: Path, name: str) -> list[float]:
    """The mean loss of every 5 steps."""
    target = folder / "curve" / name
    (run,) = load_runs(str(folder / f"{name}.yaml"), ["--output_dir", str(target), *OPTIONS])
    train_recipe(run, Console(quiet=True))
    log = json.loads((target / "training" / "log.json").read_text("utf-8"))
    return [round(entry["loss"], 4) for entry in log if "loss" in entry]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curves")
    two_process_recipes.write_recipes(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", [method.trainer_class.__name__ for method in METHODS.values()])
def test_losses_are_the_pinned_ones(name: str, folder: Path) -> None:
    pinned = json.loads(PINNED.read_text("utf-8"))["losses"][name]
    found = curve(folder, name)
    assert len(found) == len(pinned) == 10 and pinned[-1] < pinned[0]
    assert found == pytest.approx(pinned, rel=TOLERANCE)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.mkdir(parents=True)
    two_process_recipes.write_recipes(place)
    losses = {
        method.trainer_class.__name__: curve(place, method.trainer_class.__name__) for method in METHODS.values()
    }
    content = {"machine": platform.processor() or platform.machine(), "steps": "mean of 5", "losses": losses}
    PINNED.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
