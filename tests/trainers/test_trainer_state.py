"""State of a trainer: loss parts of a second training, patience after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightweight_trainers import trainer_of
from transformers import EarlyStoppingCallback

from hf_xlsr.data.prepared import PreparedPairs


def test_second_training_logs_its_own_losses(tokenizer: Any, prepared: PreparedPairs, tmp_path: Path) -> None:
    """The first ends between two logs; nothing is learnt, so that the same batches have the same losses."""
    trainer = trainer_of(tokenizer, prepared, tmp_path, max_steps=3, logging_steps=2, learning_rate=0.0, dropout=0.0)
    logged = []
    for _ in range(2):
        trainer.train()
        logged.append(next(entry["loss/alignment"] for entry in trainer.state.log_history if "loss" in entry))
    assert logged[0] == pytest.approx(logged[1], rel=1e-6)


# No evaluation is better than the first.
AT_EVERY_STEP: dict[str, Any] = {
    "max_steps": 8,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "save_strategy": "steps",
    "save_steps": 1,
    "evaluations": [lambda encoder: {"toy/accuracy": 0.5}],
}


def test_patience_after_a_resume(tokenizer: Any, prepared: PreparedPairs, tmp_path: Path) -> None:
    """The checkpoint has counted two evaluations without a gain; what was asked for then does not hold any more."""

    def trained(patience: int, resumed: str | None = None) -> int:
        stopping = {"early_stopping_patience": patience, "metric_for_best_model": "toy/accuracy"} if patience else {}
        trainer = trainer_of(tokenizer, prepared, tmp_path, **AT_EVERY_STEP, **stopping)
        trainer.train(resume_from_checkpoint=resumed and str(tmp_path / resumed))
        return int(trainer.state.global_step)

    assert trained(3) == 4  # the first sets the mark
    assert trained(4, "checkpoint-3") == 5
    assert trained(0, "checkpoint-3") == 8
    assert trained(1, "checkpoint-2") == 3


def test_own_callback_keeps_its_patience(tokenizer: Any, prepared: PreparedPairs, tmp_path: Path) -> None:
    def trainer() -> Any:
        made = trainer_of(tokenizer, prepared, tmp_path, metric_for_best_model="toy/accuracy", **AT_EVERY_STEP)
        made.add_callback(EarlyStoppingCallback(3))
        return made

    trainer().train()
    again = trainer()
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.state.global_step == 5  # it counts anew
