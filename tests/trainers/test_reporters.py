"""What a reporter of `training.report_to` gets: loss parts and dev metrics under the keys users see, no tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import two_process_recipes
from lightweight_trainers import arguments
from rich.console import Console

from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.trainers import LightweightTrainer

pytestmark = pytest.mark.slow

KEYS = {
    "train/loss",
    "train/loss/generative",
    "train/loss/alignment",
    "train/loss/similarity",
    "train/learning_rate",
    "eval/dev-tatoeba/en-fr/dev/accuracy",
}
TOKEN = "hf_thisisverysecret"


@pytest.fixture
def accumulator(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads the events below a folder."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("HF_TOKEN", TOKEN)

    def read(folder: Path) -> Any:
        (events,) = folder.rglob("events.*")
        return EventAccumulator(str(events.parent)).Reload()

    return read


def assert_no_token(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files and not [path for path in files if TOKEN.encode() in path.read_bytes()]


def test_values_of_a_run(accumulator: Any, tmp_path: Path) -> None:
    two_process_recipes.write_recipes(tmp_path)
    output, words = tmp_path / "run", ["--report_to", "tensorboard", "--logging_steps", "2"]
    (run,) = load_runs(str(tmp_path / "LightweightTrainer.yaml"), ["--output_dir", str(output), *words])
    train_recipe(run, Console(quiet=True))
    found = accumulator(output / "training" / "runs")
    assert set(found.Tags()["scalars"]) >= KEYS
    logged = json.loads((output / "training" / "log.json").read_text("utf-8"))
    parts = [(entry["step"], entry["loss/generative"]) for entry in logged if "loss/generative" in entry]
    written = [(event.step, event.value) for event in found.Scalars("train/loss/generative")]
    assert [step for step, _ in written] == [2, 4]
    assert [value for _, value in written] == pytest.approx([value for _, value in parts])
    assert_no_token(output)


def test_token_is_masked(accumulator: Any, tokenizer: Any, prepared: Any, tiny_model: Any, tmp_path: Path) -> None:
    args = arguments(
        tmp_path, max_steps=1, report_to="tensorboard", hub_token=TOKEN, save_strategy="steps", save_steps=1
    )
    LightweightTrainer(tiny_model, args, train_dataset=prepared, processing_class=tokenizer).train()
    assert "args/text_summary" in accumulator(tmp_path).Tags()["tensors"]
    assert_no_token(tmp_path)
