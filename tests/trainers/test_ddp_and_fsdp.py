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
    *(("fsdp", name) for name in SHARDED),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs: of one process in `one`, of two in `ddp`, `cached` and `fsdp`."""
    folder = tmp_path_factory.mktemp("two_processes")
    two_process_recipes.write_recipes(folder)
    script = Path(two_process_recipes.__file__)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    two = subprocess.Popen(
        [*torchrun, str(script), str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        for name in NAMES:
            two_process_recipes.run(folder, name, "one", whole=name in two_process_recipes.WHOLE)
        output = two.communicate(timeout=250)[0]
    finally:
        two.kill()
    assert (folder / "refused.json").is_file(), output
    return folder


def logged(folder: Path, kind: str, name: str) -> list[dict[str, Any]]:
    log = json.loads((folder / kind / name / "training" / "log.json").read_text("utf-8"))
    return [entry for entry in log if "loss" in entry]


def weights(folder: Path, kind: str, name: str) -> dict[str, torch.Tensor]:
    return load_file(folder / kind / name / "training" / "final" / "model.safetensors")


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_same_losses_and_weights_as_one_process(kind: str, name: str, folder: Path) -> None:
    one, two = logged(folder, "one", name), logged(folder, kind, name)
    assert len(one) == len(two) == 4
    parts = [key for key in one[0] if key == "loss" or key.startswith("loss/")]
    assert len(parts) > 1
    for left, right in zip(one, two, strict=True):
        assert {key: right[key] for key in parts} == pytest.approx({key: left[key] for key in parts}, rel=2e-4)
    assert one[0]["loss"] != pytest.approx(one[-1]["loss"], rel=1e-3)  # it does learn
    trained, expected = weights(folder, kind, name), weights(folder, "one", name)
    assert trained.keys() == expected.keys()
    for key, value in expected.items():
        if not key.startswith("queue"):  # their order within a step is that of the batch
            torch.testing.assert_close(trained[key], value, rtol=1e-3, atol=1e-5, msg=key)


@pytest.mark.parametrize("name", two_process_recipes.WHOLE)
def test_sharded_models_are_exported_whole(name: str, folder: Path) -> None:
    one, two = (json.loads((folder / kind / name / "results.json").read_text("utf-8")) for kind in ("one", "fsdp"))
    assert one["metrics"] and two["metrics"] == pytest.approx(one["metrics"], abs=1e-4)
    assert (folder / "fsdp" / name / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_the_live_encoder_is_measured_as_on_one_process(kind: str, folder: Path) -> None:
    def measured(kind: str) -> list[dict[str, float]]:
        log = json.loads((folder / kind / "LightweightTrainer" / "training" / "log.json").read_text("utf-8"))
        return [{key: entry[key] for key in entry if key.endswith("accuracy")} for entry in log if "loss" not in entry]

    expected = [entry for entry in measured("one") if entry]
    assert len(expected) == 2
    assert [entry for entry in measured(kind) if entry] == [pytest.approx(entry, abs=1e-6) for entry in expected]


def test_sharded_run_resumes(folder: Path) -> None:
    assert (
        folder / "adam/LightweightTrainer/training/checkpoint-4/pytorch_model_fsdp.bin"
    ).is_file()  # it was sharded
    whole = weights(folder, "adam", "LightweightTrainer")
    for key, value in weights(folder, "stopped", "LightweightTrainer").items():
        assert torch.equal(value, whole[key]), key


def test_unsupported_sharding(folder: Path) -> None:
    refused = json.loads((folder / "refused.json").read_text("utf-8"))
    assert set(refused) == {"processors", "DualMomentumTrainer"}
    assert all("without FSDP" in error for error in refused.values())
