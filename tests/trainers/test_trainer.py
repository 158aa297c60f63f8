from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import seven_trainers
import torch
from lightweight_trainers import trainer_of
from transformers import TrainerCallback

from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.modeling.base import attention_of


def test_loss_parts_are_logged_and_add_up(tokenizer: Any, prepared: PreparedPairs, tmp_path: Path) -> None:
    trainer = trainer_of(tokenizer, prepared, tmp_path)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logs) == 3
    for entry in logs:
        total = entry["loss/generative"] + 2 * entry["loss/alignment"] + 2 * entry["loss/similarity"]
        assert entry["loss"] == pytest.approx(total, rel=1e-4)


def test_workers_change_nothing(tokenizer: Any, prepared: PreparedPairs, tmp_path: Path) -> None:
    states = []
    for count in (0, 2):
        options = {"dataloader_num_workers": count, "dropout": 0.1}
        trainer = trainer_of(tokenizer, prepared, tmp_path / str(count), **options)
        trainer.train()
        states.append(trainer.model.state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_released_optimisation(tokenizer: Any, prepared: PreparedPairs, tmp_path: Path) -> None:
    trainer = trainer_of(tokenizer, prepared, tmp_path, optimization="released", weight_decay=1e-5, logging_steps=1)
    trainer.train()
    optimizer = trainer.optimizer.optimizer if hasattr(trainer.optimizer, "optimizer") else trainer.optimizer
    assert isinstance(optimizer, torch.optim.Adam) and not isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["amsgrad"] and optimizer.defaults["weight_decay"] == 1e-5
    assert "max_exp_avg_sq" in next(iter(optimizer.state.values()))
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    assert rates[0] < rates[3] and rates[1] / rates[0] == pytest.approx(2, rel=0.01)


def test_released_rate_falls_to_a_tenth_in_epoch_3(tmp_path: Path) -> None:
    """As in the paper, where the arguments name no other epoch; epochs are counted from 0."""
    settings = {"optimization": "released", "max_steps": 10, "per_device_train_batch_size": 32}
    trainer = seven_trainers.trainer_of("Lightweight", tmp_path, settings=settings)
    trainer.train()

    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    falls = [step for step in range(1, 10) if rates[step] < rates[step - 1]]
    assert falls == [6]
    assert rates[6] / rates[5] == pytest.approx(0.1 * 7 / 6, rel=0.01)


@pytest.mark.parametrize(("precision", "attention"), [("bfloat16", "eager"), ("float32", "sdpa")])
@pytest.mark.parametrize("kind", ["Lightweight", "DualMomentum"])
def test_attention_that_is_fast_on_a_processor(kind: str, precision: str, attention: str, tmp_path: Path) -> None:
    trainer = seven_trainers.trainer_of(kind, tmp_path, settings={"precision": precision})
    assert attention_of(trainer.model.config) == attention


@pytest.mark.parametrize("kind", seven_trainers.KINDS)
def test_collator_callbacks_and_optimizer_of_the_caller(kind: str, tmp_path: Path) -> None:
    callback = TrainerCallback()
    trainer = seven_trainers.trainer_of(
        kind,
        tmp_path,
        data_collator=list,
        callbacks=[callback],
        optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.25}),
    )

    optimizer = trainer.create_optimizer()

    assert trainer.data_collator is list
    assert callback in trainer.callback_handler.callbacks
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.defaults["lr"] == 0.25
