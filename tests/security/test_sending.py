"""A recipe of others sends nothing: neither a model to the Hub nor numbers to a service."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from call_sites import places_of
from cli_helpers import failing
from conftest import make_pairs, tiny_encoder
from transformers import TrainingArguments

from hf_xlsr.cli import main
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.sending import describe_sending
from hf_xlsr.runs.train import prepare_recipe, train_recipe
from hf_xlsr.trainers.hub import SlimPushes
from hf_xlsr.utils.errors import XlsrError

PUSHING = {"push_to_hub": True, "hub_model_id": "them/model"}
FORMS = ("recipe", "base", "runs", "stages")


def write_recipe(folder: Path, training: dict[str, Any], form: str = "recipe") -> str:
    """A recipe with keys of `training`: its own, those of the recipe that it extends, or of a run in its list."""
    pairs = folder / "pairs.tsv"
    pairs.write_text("".join("{source}\t{target}\n".format_map(pair) for pair in make_pairs(64)), "utf-8")
    encoder = tiny_encoder(80)
    del encoder["vocab_size"]
    content: dict[str, Any] = {
        "method": "lightweight",
        "languages": ["en", "fr"],
        "data": {"train": {"path": str(pairs)}, "max_length": 32, "cleaning": ["normalize"]},
        "tokenizer": {"vocab_size": 80, "algorithm": "bpe"},
        "model": {"encoder": encoder},
        "training": {"max_steps": 1, "per_device_train_batch_size": 8},
        "output_dir": str(folder / "run"),
    }
    if form in ("runs", "stages"):
        content[form] = [{"name": "one", "set": {"training": training}}]
    else:
        content["training"] |= training
    file = folder / "theirs.yaml"
    file.write_text(yaml.safe_dump(content), "utf-8")
    if form == "base":
        file = folder / "extended.yaml"
        file.write_text(yaml.safe_dump({"base": str(folder / "theirs.yaml")}), "utf-8")
    return str(file)


@pytest.mark.parametrize("form", FORMS)
def test_recipe_does_not_push(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path, PUSHING, form)
    error = failing(capsys, "train", recipe)
    assert "them/model" in error
    assert "--push" in error
    with pytest.raises(XlsrError, match="them/model.*--push"):
        train_recipe(load_runs(recipe)[0])
    assert not (tmp_path / "run").exists()


def test_push_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "pushes nothing" in failing(capsys, "train", write_recipe(tmp_path, {}), "--push")


def test_allowed_push(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is announced before anything is sent."""
    monkeypatch.setattr(SlimPushes, "init_hf_repo", lambda *_, **__: pytest.fail(capsys.readouterr().out))
    with pytest.raises(pytest.fail.Exception, match="Sends the model to them/model on the Hub"):
        main(["train", write_recipe(tmp_path, PUSHING), "--push"])


def test_preparation_makes_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlimPushes, "init_hf_repo", lambda *_, **__: pytest.fail("a repository was made"))
    (run,) = load_runs(write_recipe(tmp_path, PUSHING))
    assert prepare_recipe(run)["pairs"]


def deepspeed_file(folder: Path) -> str:
    file = folder / "deepspeed.json"
    file.write_text(json.dumps({"comet": {"enabled": True}}), "utf-8")
    return str(file)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("training", "service"),
    [
        ({"report_to": "wandb"}, "wandb"),
        ({"report_to": ["tensorboard", "mlflow"]}, "mlflow"),
        ({"report_to": "all"}, "all"),
        ({"trackio_space_id": "them/space"}, "trackio them/space"),
        ({"deepspeed": {"wandb": {"enabled": True}}}, "deepspeed.wandb"),
        ({"deepspeed": deepspeed_file}, "deepspeed.comet"),
    ],
)
def test_recipe_chooses_no_service(training: dict[str, Any], service: str, form: str, tmp_path: Path) -> None:
    if callable(training.get("deepspeed")):
        training = {"deepspeed": deepspeed_file(tmp_path)}
    recipe = write_recipe(tmp_path, training, form)
    with pytest.raises(XlsrError, match=f"'{service}'.*--report_to"):
        load_runs(recipe)


def test_services_of_the_command(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, {"report_to": "mlflow"})
    (run,) = load_runs(recipe, ["--report_to", "wandb"])
    assert describe_sending(run.recipe) == "Sends reports to wandb."
    (local_run,) = load_runs(recipe, ["--report_to", "tensorboard"])
    assert not describe_sending(local_run.recipe)


def test_no_unknown_road_of_training_arguments() -> None:
    """A new argument of transformers that sends something must be added to `hf_xlsr.runs.sending`."""
    words = ("hub", "push", "report", "space", "upload", "trackio")
    names = {field.name for field in fields(TrainingArguments) if any(word in field.name for word in words)}
    known = {name for name in names if name.startswith(("hub_", "trackio_"))}
    assert names - known == {"push_to_hub", "report_to"}


def test_recipes_are_trained_in_one_place() -> None:
    """`train_recipe` checks what is allowed; nothing else makes the trainer of a recipe train."""
    assert places_of(lambda site: site.method == "build_trainer") == {
        "hf_xlsr/runs/train.py:_train",
        "hf_xlsr/runs/train.py:prepare_recipe",
    }
    assert places_of(lambda site: site.method == "check_push") == {
        "hf_xlsr/cli/train.py:train",
        "hf_xlsr/runs/train.py:train_recipe",
    }
