"""What `Trainer` takes and these trainers cannot use is told, rather than passed over."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from lightweight_trainers import trainer_of
from transformers import EarlyStoppingCallback

from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.trainers.arguments import XlsrTrainingArguments
from hf_xlsr.utils import precision
from hf_xlsr.utils.errors import XlsrError


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


def test_predictions_by_row_are_not_for_these_models(tokenizer: Any, prepared: PreparedPairs, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match=r"predict does not take these data; take vectors of live_encoder\(\)"):
        trainer_of(tokenizer, prepared, tmp_path).predict(prepared)
    with pytest.raises(XlsrError, match="predict does not take these data"):
        trainer_of(tokenizer, prepared, tmp_path).predict([])


def test_flags_hold_where_precision_is_auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "cpu_has_fast_bfloat16", lambda: False)

    def made(**options: Any) -> XlsrTrainingArguments:
        return XlsrTrainingArguments(output_dir=str(tmp_path), report_to="none", use_cpu=True, **options)

    assert made(bf16=True).bf16 and not made(bf16=True).fp16 and not made().bf16
    assert made(bf16=True, precision="bfloat16").bf16 and not made(bf16=True, precision="float32").bf16
    with pytest.raises(XlsrError, match="precision float16 needs a GPU"):
        made(fp16=True)
    with pytest.raises(XlsrError, match="bf16 and fp16 are both true; leave one of them out"):
        made(bf16=True, fp16=True)
    assert replace(made(bf16=True)).bf16 and not replace(made(bf16=True), precision="float32").bf16


# No evaluation is better than the first.
AT_EVERY_STEP: dict[str, Any] = {
    "max_steps": 8,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "save_strategy": "steps",
    "save_steps": 1,
    "evaluations": [lambda encoder: {"toy/accuracy": 0.5}],
}


def test_patience_is_what_the_arguments_say_after_a_resume(
    tokenizer: Any, prepared: PreparedPairs, tmp_path: Path
) -> None:
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


def test_so_is_the_threshold(tokenizer: Any, prepared: PreparedPairs, tmp_path: Path) -> None:
    def trained(threshold: float, resumed: str | None = None) -> int:
        scores = iter([0.50, 0.51, 0.52, 0.53, 0.54, 0.55, 0.56, 0.57])
        options = {
            **AT_EVERY_STEP,
            "evaluations": [lambda encoder: {"toy/accuracy": next(scores)}],
            "early_stopping_patience": 2,
            "early_stopping_threshold": threshold,
            "metric_for_best_model": "toy/accuracy",
        }
        trainer = trainer_of(tokenizer, prepared, tmp_path, **options)
        if resumed:
            scores = islice(scores, 3, None)  # from the fourth step on
        trainer.train(resume_from_checkpoint=resumed and str(tmp_path / resumed))
        return int(trainer.state.global_step)

    assert trained(0.0) == 8
    assert trained(0.1, "checkpoint-3") == 5


def test_a_callback_of_ones_own_keeps_its_patience(tokenizer: Any, prepared: PreparedPairs, tmp_path: Path) -> None:
    def trainer() -> Any:
        made = trainer_of(tokenizer, prepared, tmp_path, metric_for_best_model="toy/accuracy", **AT_EVERY_STEP)
        made.add_callback(EarlyStoppingCallback(3))
        return made

    trainer().train()
    again = trainer()
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.state.global_step == 5  # it counts anew
