"""What a run has on disk: as much as it said, no weights twice in `training`, and nothing that a kill can spoil."""

from __future__ import annotations

import re
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import two_process_recipes
from rich.console import Console
from seven_trainers import KINDS

from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.checkpoints import folder_bytes
from hf_xlsr.utils.errors import XlsrError

SAVING = ("--save_strategy", "steps", "--save_steps", "2", "--optim", "adamw_torch", "--eval_strategy", "no")
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
UNITS = {"kB": 1e3, "MB": 1e6}


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipes")
    two_process_recipes.write_recipes(folder)
    return folder


def run(recipes: Path, kind: str, folder: Path, *options: str) -> str:
    """What a run says."""
    (method,) = load_runs(str(recipes / f"{kind}Trainer.yaml"), ["--output_dir", str(folder), *SAVING, *options])
    said = StringIO()
    train_recipe(method, Console(file=said, soft_wrap=True))
    return said.getvalue()


def weights_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


def distinct_files(training: Path) -> int:
    return len({path.stat().st_ino for path in training.glob("*/*.safetensors")})


@pytest.mark.parametrize("adapters", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.sample(1)
@EVERY_KIND
def test_the_final_weights_are_those_of_the_last_checkpoint(
    kind: str, adapters: bool, recipes: Path, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    options = ["--adapters.rank", "2"] if adapters else []
    if kind == "Distillation":
        options += ["--model.queue_size", "0"]
    run(recipes, kind, folder.path, *options)

    last = folder.training / "checkpoint-4"
    stored = weights_of(last)
    assert weights_of(folder.final) == stored
    for name in stored:
        assert (folder.final / name).samefile(last / name)

    run(recipes, kind, folder.path, *options)
    assert weights_of(folder.final) == stored
    assert weights_of(last) == stored


@pytest.mark.slow
def test_the_final_weights_are_those_of_the_best_checkpoint(recipes: Path, tmp_path: Path) -> None:
    """As the model stands still, that of the first evaluation."""
    options = ["--eval_strategy", "steps", "--load_best_model_at_end", "true", "--learning_rate", "0.0"]
    options += ["--metric_for_best_model", "dev-tatoeba/en-fr/dev/accuracy"]
    folder = RunFolder(tmp_path / "run")
    run(recipes, "Lightweight", folder.path, *options)
    assert distinct_files(folder.training) == 2


@pytest.mark.parametrize("ended", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_save_that_is_killed_leaves_the_checkpoint(
    ended: bool, recipes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run whose final weights are complete but for the state, or are not there."""
    folder = RunFolder(tmp_path / "run")
    run(recipes, "Lightweight", folder.path)
    stored = weights_of(folder.final)
    if ended:
        (folder.final / "trainer_state.json").unlink()
    else:
        shutil.rmtree(folder.final)

    def stop_midway(self: XlsrTrainer, output_dir: str) -> None:
        Path(output_dir).mkdir(exist_ok=True)
        (Path(output_dir) / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(XlsrTrainer, "save_model", stop_midway)
        with pytest.raises(KeyboardInterrupt):
            run(recipes, "Lightweight", folder.path)
    assert weights_of(folder.training / "checkpoint-4") == stored

    run(recipes, "Lightweight", folder.path)
    assert weights_of(folder.final) == stored
    assert distinct_files(folder.training) == 2


@pytest.mark.slow
def test_a_file_system_without_links_has_copies(
    recipes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, target: Path) -> None:
        raise OSError("no links")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    folder = RunFolder(tmp_path / "run")
    run(recipes, "Lightweight", folder.path)
    assert weights_of(folder.final) == weights_of(folder.training / "checkpoint-4")
    assert distinct_files(folder.training) == 3


# --- The size that is said ----------------------------------------------------------------------------------------


WIDE = ("--encoder.hidden_size", "256", "--encoder.intermediate_size", "1024")


def said_bytes(said: str) -> float:
    number, unit = re.findall(r"Up to ([\d.]+) (\w+) on disk", said)[0]
    return float(number) * UNITS[unit]


def stored_bytes(folder: RunFolder) -> int:
    """Bytes of checkpoints and models, of a file with several names once."""
    sizes: dict[int, int] = {}
    for place in (folder.training, folder.model):
        for path in place.rglob("*"):
            if path.suffix in (".safetensors", ".pt"):
                sizes[path.stat().st_ino] = path.stat().st_size
    return sum(sizes.values())


@pytest.mark.parametrize("saving", [["--save_strategy", "no"], ["--save_only_model", "true"], []])
@pytest.mark.parametrize("adapters", ["0", "8"])
@pytest.mark.parametrize("kind", ["Lightweight", "Hictl", "Cmlm"])
@pytest.mark.slow
def test_the_size_that_is_said_is_that_of_the_run(
    kind: str, adapters: str, saving: list[str], recipes: Path, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    said = run(recipes, kind, folder.path, *WIDE, "--adapters.rank", adapters, *saving)
    assert said_bytes(said) == pytest.approx(stored_bytes(folder), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_run_says_its_size_once(kind: str, recipes: Path, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    said = run(recipes, kind, folder.path)
    assert said_bytes(said) == pytest.approx(folder_bytes(folder.training, folder.model), rel=0.5)
    assert said.count("save_only_model") == 1
    assert "save_only_model" not in run(recipes, kind, folder.path)


# --- Only weights -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@EVERY_KIND
def test_a_run_of_only_weights_ends_but_does_not_resume(
    kind: str, recipes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "run")
    options = ("--save_only_model", "true")
    run(recipes, kind, folder.path, *options)
    stored = weights_of(folder.final)

    shutil.rmtree(folder.final)  # killed after the last checkpoint
    with monkeypatch.context() as patch:
        patch.setattr(XlsrTrainer, "train", None)  # a call would fail
        run(recipes, kind, folder.path, *options)
    assert weights_of(folder.final) == stored

    two_process_recipes.go_back(folder.path)
    with pytest.raises(XlsrError, match="checkpoint-2.*save_only_model"):
        run(recipes, kind, folder.path, *options)
    run(recipes, kind, folder.path, *options, "--overwrite", "true")
    assert weights_of(folder.final) == stored


def test_a_stopped_run_of_only_weights_does_not_promise_a_resume(
    recipes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: Any, *args: Any, **options: Any) -> None:
        self._graceful_stop.stopped = True
        raise KeyboardInterrupt

    monkeypatch.setattr(XlsrTrainer, "train", stop)
    said = run(recipes, "Lightweight", tmp_path / "run", "--save_only_model", "true")
    assert "resumes" not in said
    assert "save_only_model" in said.splitlines()[-1]
