"""`save_only_model`: checkpoints hold weights only, and a resume says that it cannot use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from seven_trainers import KINDS, model_of, rows_of, trainer_of

from hf_xlsr.trainers.adapters import add_adapters
from hf_xlsr.trainers.checkpoints import last_whole_checkpoint
from hf_xlsr.utils.errors import XlsrError

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
ONLY_WEIGHTS = {"save_strategy": "steps", "save_steps": 2, "save_only_model": True}
EVALUATING = {"eval_strategy": "steps", "eval_steps": 2, "learning_rate": 1e-1}


def state_of(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


@pytest.mark.sample(1)
@EVERY_KIND
def test_a_checkpoint_of_weights_is_no_place_to_resume(kind: str, tmp_path: Path) -> None:
    trainer_of(kind, tmp_path, settings=ONLY_WEIGHTS).train()
    newest = last_whole_checkpoint(tmp_path)
    assert newest == tmp_path / "checkpoint-4"
    assert not list(tmp_path.rglob("optimizer*"))

    for resume in (True, str(newest), str(tmp_path / "checkpoint-2")):
        trainer = trainer_of(kind, tmp_path, settings={**ONLY_WEIGHTS, "max_steps": 6})
        with pytest.raises(XlsrError, match="save_only_model"):
            trainer.train(resume)


@pytest.mark.sample(1)
@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.sample(1)
@EVERY_KIND
def test_its_weights_are_those_of_the_training(kind: str, adapters: bool, tmp_path: Path) -> None:
    """Also queues and momentum encoders."""

    def new_trainer() -> Any:
        options = {"queue_size": 0} if adapters and kind == "Distillation" else {}
        model = model_of(kind, **options)
        if adapters:
            pytest.importorskip("peft")
            model = add_adapters(model, rank=2)
        return trainer_of(kind, tmp_path, model=model, settings=ONLY_WEIGHTS)

    trained = new_trainer()
    trained.train()
    loaded = new_trainer()
    loaded.load_checkpoint(tmp_path / "checkpoint-4")

    expected = state_of(trained)
    for name, value in state_of(loaded).items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.sample(1)
@EVERY_KIND
def test_the_best_weights_are_loaded(kind: str, tmp_path: Path) -> None:
    """As from whole checkpoints, with early stopping."""
    states = []
    for only_weights in (False, True):
        folder = tmp_path / str(only_weights)
        settings = {**ONLY_WEIGHTS, **EVALUATING, "max_steps": 8, "early_stopping_patience": 1}
        settings |= {"save_only_model": only_weights, "save_total_limit": 1}
        trainer = trainer_of(kind, folder, settings=settings, eval_dataset=rows_of(kind, 12, seed=9))
        trainer.train()
        states.append(state_of(trainer))

    whole, weights = states
    for name, value in weights.items():
        assert torch.equal(value, whole[name]), name
