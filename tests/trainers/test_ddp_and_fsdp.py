"""Every trainer on two processes, data parallel and with sharded weights, trains like one on the same global batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import two_process_recipes
from safetensors.torch import load_file

from hf_xlsr.runs.methods import METHODS

pytestmark = pytest.mark.slow
NAMES = [method.trainer_class.__name__ for method in METHODS.values()]
SHARDED = [name for name in NAMES if name != "DualMomentumTrainer"]
KINDS = [
    *(("ddp", name) for name in NAMES),
    *(("cached", name) for name in two_process_recipes.CACHED),
    *(("rows", name) for name in two_process_recipes.ROWS),
    *(("fsdp", name) for name in SHARDED),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs: of one process in `one`, of two in `ddp`, `cached` and `fsdp`."""
    folder = tmp_path_factory.mktemp("two_processes")
    two_process_recipes.write_recipes(folder)

    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [*torchrun, two_process_recipes.__file__, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for name in NAMES:
            two_process_recipes.run(folder, name, "one", whole=name in two_process_recipes.WHOLE)
        output, _ = process.communicate(timeout=250)
    finally:
        process.kill()
    assert (folder / "refused.json").is_file(), output
    return folder


def logged(folder: Path, kind: str, name: str) -> list[dict[str, Any]]:
    return json.loads((folder / kind / name / "training" / "log.json").read_text("utf-8"))


def logged_losses(folder: Path, kind: str, name: str) -> list[dict[str, float]]:
    """The loss and its parts at each log of the training."""
    return [losses_of(entry) for entry in logged(folder, kind, name) if "loss" in entry]


def losses_of(entry: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in entry.items() if key == "loss" or key.startswith("loss/")}


def logged_accuracies(folder: Path, kind: str) -> list[dict[str, float]]:
    """The accuracies of each evaluation."""
    accuracies = []
    for entry in logged(folder, kind, "LightweightTrainer"):
        metrics = {key: value for key, value in entry.items() if key.endswith("accuracy")}
        if metrics:
            accuracies.append(metrics)
    return accuracies


def weights(folder: Path, kind: str, name: str) -> dict[str, torch.Tensor]:
    return load_file(folder / kind / name / "training" / "final" / "model.safetensors")


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_same_losses_and_weights_as_one_process(kind: str, name: str, folder: Path) -> None:
    expected_losses = logged_losses(folder, "one", name)
    losses = logged_losses(folder, kind, name)
    assert len(losses) == len(expected_losses) == 4
    assert len(expected_losses[0]) > 1
    for step_losses, expected_step_losses in zip(losses, expected_losses, strict=True):
        assert step_losses == pytest.approx(expected_step_losses, rel=2e-4)
    assert expected_losses[0]["loss"] != pytest.approx(expected_losses[-1]["loss"], rel=1e-3)  # it does learn

    trained = weights(folder, kind, name)
    expected = weights(folder, "one", name)
    assert trained.keys() == expected.keys()
    for key, value in expected.items():
        if not key.startswith("queue"):  # their order within a step is that of the batch
            torch.testing.assert_close(trained[key], value, rtol=1e-3, atol=1e-5, msg=key)


@pytest.mark.parametrize("name", two_process_recipes.WHOLE)
def test_sharded_models_are_exported_whole(name: str, folder: Path) -> None:
    expected = json.loads((folder / "one" / name / "results.json").read_text("utf-8"))["metrics"]
    metrics = json.loads((folder / "fsdp" / name / "results.json").read_text("utf-8"))["metrics"]
    assert expected
    assert metrics == pytest.approx(expected, abs=1e-4)
    assert (folder / "fsdp" / name / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_the_live_encoder_is_measured_as_on_one_process(kind: str, folder: Path) -> None:
    expected = logged_accuracies(folder, "one")
    assert len(expected) == 2
    assert logged_accuracies(folder, kind) == [pytest.approx(metrics, abs=1e-6) for metrics in expected]


def test_sharded_run_resumes(folder: Path) -> None:
    checkpoint = folder / "adam" / "LightweightTrainer" / "training" / "checkpoint-4"
    assert (checkpoint / "pytorch_model_fsdp.bin").is_file()  # it was sharded
    whole = weights(folder, "adam", "LightweightTrainer")
    for key, value in weights(folder, "stopped", "LightweightTrainer").items():
        assert torch.equal(value, whole[key]), key


def test_unsupported_sharding(folder: Path) -> None:
    refused = json.loads((folder / "refused.json").read_text("utf-8"))
    assert set(refused) == {"processors", "DualMomentumTrainer"}
    assert all("without FSDP" in error for error in refused.values())
