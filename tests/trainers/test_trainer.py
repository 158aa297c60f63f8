from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightweight_trainers import trainer_of

from hf_xlsr.data.prepared import PreparedPairs


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
