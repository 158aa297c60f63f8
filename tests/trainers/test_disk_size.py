"""The size of a training on disk, which is said before it starts, is that of its folder."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import seven_trainers
import torch
from conftest import make_pairs, tiny_encoder
from datasets import Dataset
from hictl_helpers import framed_tokenizer
from seven_trainers import KINDS, model_of, rows_of, trainer_of
from transformers import AutoConfig
from transformers import trainer as transformers_trainer

from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.export import to_sentence_transformer
from hf_xlsr.trainers import checkpoints
from hf_xlsr.trainers.adapters import add_adapters
from hf_xlsr.trainers.checkpoints import TrainingSize, folder_bytes

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
SAVING = {"max_steps": 6, "save_strategy": "steps", "save_steps": 1}
EVALUATING = {"eval_strategy": "steps", "eval_steps": 1}
# Small files are not part of the estimate: configurations, arguments, random states.
TOLERANCE = 0.1


@pytest.fixture(autouse=True)
def _wide_encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every model an encoder whose weights are large compared to other files."""

    def encoder(seed: int = 0) -> Any:
        tokenizer = framed_tokenizer()
        sizes = {"hidden_size": 128, "intermediate_size": 512}
        torch.manual_seed(seed)
        made = encoder_from_config(AutoConfig.for_model(**{**tiny_encoder(len(tokenizer)), **sizes}))
        return to_sentence_transformer(made, tokenizer, max_length=32)

    monkeypatch.setattr(seven_trainers, "encoder", encoder)


def wide_model(kind: str, **options: Any) -> Any:
    """A model of such an encoder."""
    if kind == "Distillation":
        options["teacher_dim"] = 128
    return model_of(kind, **options)


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], int]:
    """The most bytes that checkpoints of a folder had together, seen before old ones are removed."""
    sizes: dict[Path, int] = {}
    remove_old = transformers_trainer.rotate_checkpoints

    def rotate(output_dir: str, **options: Any) -> None:
        folder = Path(output_dir)
        sizes[folder] = max(sizes.get(folder, 0), folder_bytes(*folder.glob("checkpoint-*")))
        remove_old(output_dir=output_dir, **options)

    monkeypatch.setattr(transformers_trainer, "rotate_checkpoints", rotate)
    return lambda folder: sizes[folder]


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[TrainingSize]:
    """The estimates, as they are made."""
    made: list[TrainingSize] = []

    def record(*values: int) -> TrainingSize:
        made.append(TrainingSize(*values))
        return made[-1]

    monkeypatch.setattr(checkpoints, "TrainingSize", record)
    return made


CASES: dict[str, dict[str, Any]] = {
    "all checkpoints": {},
    "one": {"save_total_limit": 1},
    "two": {"save_total_limit": 2},
    "no limit": {"save_total_limit": -1},
    "at the end": {"save_steps": 0},
    "weights": {"save_only_model": True, "save_total_limit": 1},
    # That of the first step, as the model stands still.
    "the best": {"save_total_limit": 1, "load_best_model_at_end": True, "learning_rate": 0.0, **EVALUATING},
    "epochs": {"save_strategy": "epoch", "max_steps": -1, "num_train_epochs": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@EVERY_KIND
def test_the_estimate_is_the_size_of_the_checkpoints(
    kind: str, case: str, largest: Any, sizes: list[TrainingSize], tmp_path: Path
) -> None:
    settings = {**SAVING, **CASES[case]}
    model = wide_model(kind)
    trainer = trainer_of(kind, tmp_path, model=model, settings=settings, eval_dataset=rows_of(kind, 8, seed=9))
    trainer.train()
    assert sizes[0].total == pytest.approx(largest(tmp_path), rel=TOLERANCE)


OPTIMISERS: dict[str, dict[str, Any]] = {
    "adamw_torch": {},
    "adafactor": {},
    "sgd": {},
    "momentum": {"optim": "sgd", "optim_args": "momentum=0.9"},
    "rmsprop": {},
    "adagrad": {},
    "released": {"optim": "adamw_torch", "optimization": "released"},
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_state_of_every_optimiser_is_counted(
    name: str, largest: Any, sizes: list[TrainingSize], tmp_path: Path
) -> None:
    settings = {**SAVING, "max_steps": 1, "optim": name, **OPTIMISERS[name]}
    trainer_of("Lightweight", tmp_path, settings=settings).train()
    assert sizes[0].total == pytest.approx(largest(tmp_path), rel=TOLERANCE)


def test_the_state_of_lamb_is_counted(largest: Any, sizes: list[TrainingSize], tmp_path: Path) -> None:
    pytest.importorskip("pytorch_optimizer")
    trainer_of("Cmlm", tmp_path, settings={**SAVING, "max_steps": 1, "optimizer": "lamb"}).train()
    assert sizes[0].total == pytest.approx(largest(tmp_path), rel=TOLERANCE)


@pytest.mark.sample(1)
@EVERY_KIND
def test_adapters_are_counted_without_the_weights_below_them(
    kind: str, largest: Any, sizes: list[TrainingSize], tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    options = {"queue_size": 0} if kind == "Distillation" else {}
    model = add_adapters(wide_model(kind, **options), rank=64)
    trainer_of(kind, tmp_path, model=model, settings={**SAVING, "max_steps": 1}).train()
    assert sizes[0].total == pytest.approx(largest(tmp_path), rel=TOLERANCE)


def test_frozen_weights_have_no_state(largest: Any, sizes: list[TrainingSize], tmp_path: Path) -> None:
    model = model_of("Lightweight")
    model.encoder.requires_grad_(False)
    trainer_of("Lightweight", tmp_path, model=model, settings={**SAVING, "max_steps": 1}).train()
    assert sizes[0].total == pytest.approx(largest(tmp_path), rel=TOLERANCE)


def test_a_stream_saves_one_epoch(largest: Any, sizes: list[TrainingSize], tmp_path: Path) -> None:
    rows = Dataset.from_list(make_pairs(64)).to_iterable_dataset()
    settings = {**SAVING, "save_strategy": "epoch"}
    trainer_of("Lightweight", tmp_path, rows=rows, settings=settings).train()
    assert sizes[0].total == pytest.approx(largest(tmp_path), rel=TOLERANCE)


@pytest.mark.parametrize("strategy", ["no", "best"])
def test_what_is_not_saved_takes_no_disk(strategy: str, sizes: list[TrainingSize], tmp_path: Path) -> None:
    settings = {"save_strategy": strategy, "metric_for_best_model": "loss", "max_steps": 1}
    trainer_of("Lightweight", tmp_path, settings=settings, eval_dataset=make_pairs(8)).train()
    assert sizes[0].total == 0


@pytest.mark.parametrize("free", [1_000, 10**12])
def test_a_training_that_does_not_fit_warns(
    free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    with caplog.at_level(logging.WARNING, "hf_xlsr"):
        trainer_of("Lightweight", tmp_path, settings={**SAVING, "max_steps": 1}).train()
    assert ("1.0 kB" in caplog.text) == (free == 1_000)


def test_what_a_resume_finds_needs_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**SAVING, "save_total_limit": 1}
    trainer_of("Lightweight", tmp_path, settings=settings).train()
    one_checkpoint = folder_bytes(tmp_path / "checkpoint-6")
    shutil.copytree(tmp_path / "checkpoint-6", tmp_path / "checkpoint-5")

    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=one_checkpoint // 10))
    with caplog.at_level(logging.WARNING, "hf_xlsr"):
        trainer_of("Lightweight", tmp_path, settings={**settings, "max_steps": 8}).train(
            str(tmp_path / "checkpoint-5")
        )
    assert "kB" not in caplog.text
