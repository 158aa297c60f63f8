"""Training progress for people: a bar, and one short line for each log."""

from __future__ import annotations

from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ProgressCallback

from hf_xlsr.evaluation.report import SCORE_WORDS, metric_unit


def log_line(step: int, logs: dict[str, Any]) -> str:
    """One line of a training log.

    Args:
        step: Optimiser steps taken.
        logs: As Trainer gives them.

    Returns:
        The line; empty for logs that hold nothing worth a line.

    Example:
        >>> log_line(200, {"loss": 5.0, "loss/generative": 4.5, "loss/alignment": 0.25, "learning_rate": 1e-3})
        'step 200  loss 5.000 (generative 4.500, alignment 0.250)  learning rate 1.0e-03'
        >>> log_line(200, {"eval_bible-tatoeba/en-fr/dev/accuracy": 0.853})
        'step 200  bible-tatoeba/en-fr/dev/accuracy 85.3 %'
        >>> log_line(200, {"eval_multi30k-bleu/en-de/dev/bleu": 0.31})
        'step 200  multi30k-bleu/en-de/dev/bleu 31.0'
    """
    if "loss" in logs:
        parts = ", ".join(f"{name[5:]} {value:.3f}" for name, value in logs.items() if name.startswith("loss/"))
        rate = f"  learning rate {logs['learning_rate']:.1e}" if "learning_rate" in logs else ""
        return f"step {step:,}  loss {logs['loss']:.3f}" + (f" ({parts})" if parts else "") + rate
    scores = {
        name: value
        for name, value in logs.items()
        if name.startswith("eval_")
        and name.endswith(("/accuracy", "precision@1", *(f"/{word}" for word in SCORE_WORDS)))
    }
    shown = (
        f"{name[5:]} {100 * value:.1f} {metric_unit(name).replace('×100', '')}".rstrip()
        for name, value in scores.items()
    )
    return "  ".join([f"step {step:,}", *shown]) if scores else ""


class ConsoleCallback(ProgressCallback):
    """Trainer's progress bar with `log_line` instead of the printed dictionary."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        line = log_line(state.global_step, logs or {})
        if state.is_world_process_zero and self.training_bar is not None and line:
            self.training_bar.write(line)
