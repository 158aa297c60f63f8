"""A signal ends the training with a checkpoint that stays, and the handlers of before come back."""

from __future__ import annotations

import itertools
import os
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import signalled_training
from forked_command import SERVER
from lightweight_trainers import trainer_of
from transformers import TrainerCallback

from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.trainers.checkpoints import last_whole_checkpoint


class SignalAt(TrainerCallback):
    """Sends this process a signal before a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self.step:
            os.kill(os.getpid(), signal.SIGINT)


class FailsAt(SignalAt):
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self.step:
            raise RuntimeError("boom")


class BeforeSteps(TrainerCallback):
    """Sends a signal when training begins, as while queues are filled."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def falling() -> Any:
    """A protocol whose first result is the best."""
    results = itertools.count()
    return lambda encoder: {"toy/accuracy": 1.0 - 0.1 * next(results)}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "options",
    [
        {
            "save_strategy": "steps",
            "eval_steps": 1,
            "save_steps": 1,
            "save_total_limit": 1,
            "early_stopping_patience": 20,
        },
        {"save_strategy": "best", "eval_steps": 3},
    ],
    ids=["the best alone is kept", "no evaluation at the stop"],
)
def test_checkpoint_of_a_stop_stays(
    options: dict[str, Any], tokenizer: Any, prepared: PreparedPairs, tmp_path: Path
) -> None:
    options = {"eval_strategy": "steps", "metric_for_best_model": "toy/accuracy", "greater_is_better": True, **options}
    trainer = trainer_of(tokenizer, prepared, tmp_path, evaluations=[falling()], **options)
    trainer.add_callback(SignalAt(4))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer.stopped_early
    assert trainer.state.global_step == 4
    last = last_whole_checkpoint(tmp_path)
    assert last is not None
    assert last.name == "checkpoint-4"

    # A training that goes on from there ends, and then the best alone is kept where that was asked for.
    again = trainer_of(tokenizer, prepared, tmp_path, evaluations=[falling()], **options)
    again.train(resume_from_checkpoint=str(last))
    assert not again.stopped_early
    assert again.state.global_step == 12
    if options.get("save_total_limit"):
        assert len(list(tmp_path.glob("checkpoint-*"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_stop_within_an_epoch_adds_no_evaluation(
    step: int, tokenizer: Any, prepared: PreparedPairs, tmp_path: Path
) -> None:
    """Epochs of four steps, evaluated at their ends: a stop in the middle of one must not count for early stopping."""

    def evaluated(folder: str, stop: int | None) -> list[int]:
        options = {"num_train_epochs": 3, "max_steps": -1, "eval_strategy": "epoch", "save_strategy": "epoch"}
        best = {"metric_for_best_model": "toy/accuracy", "greater_is_better": True, "early_stopping_patience": 9}
        made = {"evaluations": [falling()], "per_device_train_batch_size": -(-len(prepared) // 4)}
        trainer = trainer_of(tokenizer, prepared, tmp_path / folder, **options, **best, **made)
        last = last_whole_checkpoint(tmp_path / folder)
        if stop:
            trainer.add_callback(SignalAt(stop))
        with pytest.raises(KeyboardInterrupt) if stop else nullcontext():
            trainer.train(resume_from_checkpoint=str(last) if last else None)
        return [entry["step"] for entry in trainer.state.log_history if "eval_toy/accuracy" in entry]

    whole = evaluated("whole", None)
    stopped = evaluated("stopped", step)
    assert len(whole) == 3
    assert stopped == [evaluated_step for evaluated_step in whole if evaluated_step <= step]
    assert evaluated("stopped", None) == whole


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("number", "step", "each"),
    [(signal.SIGTERM, 2, True), (signal.SIGINT, 8, False)],
    ids=["SIGTERM to each", "SIGINT in the second epoch"],
)
def test_workers_finish_the_step_after_a_signal(number: int, step: int, each: bool, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    process = SERVER.Process(target=signalled_training.main, args=(tmp_path, int(number), step, each, log))
    process.start()
    try:
        process.join(200)
    finally:
        process.kill()

    text = log.read_text("utf-8")
    assert process.exitcode == 0, text
    assert text.count("Finishing the step") == 1
    last = last_whole_checkpoint(tmp_path)
    assert last is not None
    assert last.name == f"checkpoint-{step + 1}"


@pytest.mark.parametrize(
    ("callbacks", "error"),
    [
        ([FailsAt(2)], RuntimeError),
        ([SignalAt(2), SignalAt(2)], KeyboardInterrupt),
        ([BeforeSteps()], KeyboardInterrupt),
    ],
    ids=["an error", "a second signal", "a signal before the first step"],
)
def test_handlers_after(
    callbacks: list[Any], error: type[BaseException], tokenizer: Any, prepared: PreparedPairs, tmp_path: Path
) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    trainer = trainer_of(tokenizer, prepared, tmp_path)
    for callback in callbacks:
        trainer.add_callback(callback)

    with pytest.raises(error):
        trainer.train()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert trainer.state.global_step < 2
    assert not trainer.stopped_early


def test_a_signal_in_the_last_step_is_too_late(tokenizer: Any, prepared: PreparedPairs, tmp_path: Path) -> None:
    trainer = trainer_of(tokenizer, prepared, tmp_path)
    trainer.add_callback(SignalAt(trainer.args.max_steps))
    trainer.train()
    assert trainer.state.global_step == trainer.args.max_steps
