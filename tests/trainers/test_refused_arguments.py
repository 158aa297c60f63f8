"""What `Trainer` takes and these trainers cannot use is told, rather than passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightweight_trainers import trainer_of

from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.errors import XlsrError


@pytest.mark.parametrize("name", ["compute_loss_func", "compute_metrics", "model_init"])
def test_arguments_that_have_no_place(name: str, tokenizer: Any, prepared: PreparedPairs, tmp_path: Path) -> None:
    trainer = trainer_of(tokenizer, prepared, tmp_path)
    with pytest.raises(XlsrError, match=f"{name} is given, but .*; leave it out"):
        type(trainer)(trainer.model, trainer.args, processing_class=tokenizer, **{name: lambda *_: {}})


def test_another_data_set_is_not_measured_as_the_one_given(
    tokenizer: Any, prepared: PreparedPairs, tmp_path: Path
) -> None:
    trainer = trainer_of(tokenizer, prepared, tmp_path, evaluations=[lambda encoder: {"toy/accuracy": 0.5}])
    assert trainer.evaluate()["eval_toy/accuracy"] == 0.5
    with pytest.raises(XlsrError, match="evaluate measures what the trainer was given"):
        trainer.evaluate(prepared)


def test_a_second_training_logs_its_own_losses(tokenizer: Any, prepared: PreparedPairs, tmp_path: Path) -> None:
    """The first ends between two logs; nothing is learnt, so that the same batches have the same losses."""
    trainer = trainer_of(tokenizer, prepared, tmp_path, max_steps=3, logging_steps=2, learning_rate=0.0, dropout=0.0)
    logged = []
    for _ in range(2):
        trainer.train()
        logged.append(next(entry["loss/alignment"] for entry in trainer.state.log_history if "loss" in entry))
    assert logged[0] == pytest.approx(logged[1], rel=1e-6)


def test_a_torn_checkpoint_is_not_resumed_from(tokenizer: Any, prepared: PreparedPairs, tmp_path: Path) -> None:
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    trainer_of(tokenizer, prepared, tmp_path, **options).train()
    (tmp_path / "checkpoint-4" / "trainer_state.json").unlink()
    again = trainer_of(tokenizer, prepared, tmp_path, **options)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 4 and (tmp_path / "checkpoint-4" / "trainer_state.json").is_file()
