"""What reporters of `training.report_to` get: loss parts, shares and dev metrics under the keys users see, no tokens."""

from __future__ import annotations

import importlib.machinery
import json
import sys
import types
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
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    two_process_recipes.write_recipes(tmp_path)
    return tmp_path / "LightweightTrainer.yaml"


def train(recipe: Path, reporter: str, *more: str) -> Path:
    output = recipe.parent / reporter
    (resolved,) = load_runs(
        str(recipe), ["--output_dir", str(output), "--report_to", reporter, "--logging_steps", "2", *more]
    )
    train_recipe(resolved, Console(quiet=True))
    return output


def assert_no_token(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files and not [path for path in files if TOKEN.encode() in path.read_bytes()]


def test_tensorboard(recipe: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    output = train(recipe, "tensorboard")
    (events,) = (output / "training" / "runs").rglob("events.*")
    found = EventAccumulator(str(events.parent)).Reload()
    assert set(found.Tags()["scalars"]) >= KEYS
    logged = json.loads((output / "training" / "log.json").read_text("utf-8"))
    parts = [(entry["step"], entry["loss/generative"]) for entry in logged if "loss/generative" in entry]
    written = [(event.step, event.value) for event in found.Scalars("train/loss/generative")]
    assert [step for step, _ in written] == [2, 4]
    assert [value for _, value in written] == pytest.approx([value for _, value in parts])
    assert_no_token(output)


class Recorder(types.ModuleType):
    """Stands for a reporter's package: keeps what it was given."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)
        self.__version__ = "99.0"
        self.config: Any = Config()
        self.run: Any = None
        self.started: dict[str, Any] = {}
        self.logged: list[dict[str, Any]] = []
        self.finished = False
        self.ConfigError = ValueError

        self.define_metric = self.watch = lambda *_, **__: None
        self.context_vars = types.SimpleNamespace(current_space_id=types.SimpleNamespace(get=lambda: None))

    def init(self, **options: Any) -> Any:
        self.started = options
        self.run = types.SimpleNamespace(_label=lambda **_: None, summary={})
        return self.run

    def log(self, values: dict[str, Any], **_: Any) -> None:
        self.logged.append(values)

    def finish(self) -> None:
        self.finished = True


class Config(dict[str, Any]):
    def update(self, values: Any, allow_val_change: bool = False) -> None:  # type: ignore[override]
        super().update(values)


@pytest.mark.parametrize("reporter", ["trackio", "wandb"])
def test_reporters_get_every_value(reporter: str, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(reporter)
    for name in (reporter, f"{reporter}.sdk", f"{reporter}.sdk.lib", f"{reporter}.sdk.lib.config_util"):
        monkeypatch.setitem(sys.modules, name, recorder)
    monkeypatch.setattr(f"transformers.integrations.integration_utils.is_{reporter}_available", lambda: True)
    train(recipe, reporter)
    seen = {key for values in recorder.logged for key in values}
    assert seen >= KEYS and recorder.started["name"] == "LightweightTrainer" and recorder.finished
    assert all(isinstance(value, (int, float)) for values in recorder.logged for value in values.values())
    assert recorder.config["alignment_weight"] == 2.0 and recorder.config["max_steps"] == 4
    assert TOKEN not in repr(recorder.config)


def test_token_is_masked(
    tokenizer: Any, prepared: Any, tiny_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder("trackio")
    monkeypatch.setitem(sys.modules, "trackio", recorder)
    monkeypatch.setattr("transformers.integrations.integration_utils.is_trackio_available", lambda: True)
    args = arguments(tmp_path, max_steps=1, report_to="trackio", hub_token=TOKEN)
    LightweightTrainer(tiny_model, args, train_dataset=prepared, processing_class=tokenizer).train()
    assert recorder.config["hub_token"] == "<HUB_TOKEN>" and TOKEN not in repr(recorder.config)
