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


@pytest.mark.parametrize(
    ("workers", "start"), [(2, None), pytest.param(1, "spawn", marks=pytest.mark.slow)], ids=["fork", "spawn"]
)
def test_workers_change_nothing(
    workers: int, start: str | None, tokenizer: Any, prepared: PreparedPairs, tmp_path: Path
) -> None:
    states = []
    for count, context in ((0, None), (workers, start)):
        options = {"dataloader_num_workers": count, "dataloader_multiprocessing_context": context}
        trainer = trainer_of(tokenizer, prepared, tmp_path / str(len(states)), dropout=0.1, **options)
        loader = trainer.get_train_dataloader()
        assert context is None or loader.multiprocessing_context.get_start_method() == context
        trainer.train()
        states.append(trainer.model.state_dict())
    assert all(torch.equal(states[0][name], other[name]) for other in states[1:] for name in states[0])


def test_released_optimisation(tokenizer: Any, prepared: PreparedPairs, tmp_path: Path) -> None:
    trainer = trainer_of(tokenizer, prepared, tmp_path, optimization="released", weight_decay=1e-5, logging_steps=1)
    trainer.train()
    optimizer = trainer.optimizer.optimizer if hasattr(trainer.optimizer, "optimizer") else trainer.optimizer
    assert isinstance(optimizer, torch.optim.Adam) and not isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["amsgrad"] and optimizer.defaults["weight_decay"] == 1e-5
    assert "max_exp_avg_sq" in next(iter(optimizer.state.values()))
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    assert rates[0] < rates[3] and rates[1] / rates[0] == pytest.approx(2, rel=0.01)
