"""Once per optimiser step: the momentum encoders are updated and the step's keys enter the queues.

Neither belongs to the forward pass, which may run twice (gradient checkpointing, evaluation). Keys of accumulated
micro-batches must enter together for accumulation to equal a larger batch.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.utils.distributed import gather_rows
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

HALVES = (torch.bfloat16, torch.float16)
LARGE = 0.9  # above, a step is at most a tenth of the difference
MOMENTUM_SCHEDULES = ("constant", "linear", "cosine")


@dataclass
class StepKeys:
    """Keys of the current optimiser step, and whether the step is dropped.

    Args:
        waiting: `(language, keys, texts, examples)` of each micro-batch and side, of this process only.
        dropped: Whether this step's gradient was not finite.
        dropped_steps: Number of dropped steps.
    """

    waiting: list[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    dropped: bool = False
    dropped_steps: int = 0


def scheduled_momentum(momentum: float, step: int, max_steps: int, schedule: str = "constant") -> float:
    """The momentum of a step: constant, or increasing from `momentum` to 1 during training.

    Args:
        momentum: At the start.
        step: Optimiser steps before this one.
        max_steps: Total steps.
        schedule: `constant`, `linear` or `cosine`.

    Example:
        >>> [round(scheduled_momentum(0.9, step, 10, "cosine"), 3) for step in (0, 5, 10)]
        [0.9, 0.95, 1.0]
    """
    if schedule == "constant":
        return momentum
    done = min(step / max(max_steps, 1), 1.0)
    left = 1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return 1 - (1 - momentum) * left


def _was_skipped(optimizer: Any, keys: StepKeys) -> bool:
    """Whether this step had no effect: float16 overflow, or a gradient that is not finite."""
    return keys.dropped or bool(getattr(optimizer, "step_was_skipped", False))


class SoundStepCallback(TrainerCallback):
    """Drops a step whose gradient is not finite: no update, no momentum, no keys. It logs the step and continues.

    Under float16 the gradient scaler drops the update and lowers its scale, which is normal at the start and logged as
    information. The scaler's own `step_was_skipped` is wrong for fused optimisers.

    Args:
        keys: Shared with the other callbacks.
        scaled: Whether a gradient scaler is active.
    """

    def __init__(self, keys: StepKeys, *, scaled: bool = False) -> None:
        self.keys, self.scaled = keys, scaled

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.keys.waiting, self.keys.dropped = [], False

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        if not gradients:
            return
        norm = torch.nn.utils.get_total_norm(gradients)
        # Gradients are averaged already, so all processes agree.
        if not torch.isfinite(norm):
            self.keys.dropped = True
            self.keys.dropped_steps += 1
            if not self.scaled:
                model.zero_grad(set_to_none=True)  # optimisers ignore weights without gradient
            logger.log(
                logging.INFO if self.scaled else logging.WARNING,
                "Skipped step %d: its gradient is not finite (%s). Skipped so far: %d. Lower the learning rate if this "
                "happens often.",
                state.global_step + 1,
                float(norm),
                self.keys.dropped_steps,
            )


class MomentumCallback(TrainerCallback):
    """Updates the momentum encoders after each optimiser step, equation 1.

    Args:
        keys: Shared with the other callbacks; whether the step was dropped.
        schedule: See `scheduled_momentum`.

    Raises:
        XlsrError: at the start of training, the weights have half precision and the updates are small.
    """

    def __init__(self, keys: StepKeys | None = None, schedule: str = "constant") -> None:
        self.keys, self.schedule = keys or StepKeys(), schedule

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        ours = base_model(model)
        momentum = ours.config.momentum
        small_steps = momentum < 1 and (momentum >= LARGE or self.schedule != "constant")
        pairs = ours.momentum_pairs() if ours.config.use_momentum and small_steps else ()
        if halved := {str(average.dtype) for _, average in pairs if average.dtype in HALVES}:
            raise XlsrError(
                f"Momentum encoders must be float32, got {min(halved)}: small updates of momentum {momentum} would be "
                "rounded away. Under DeepSpeed set precision to float32."
            )

    def on_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        if not _was_skipped(optimizer, self.keys):
            ours = base_model(model)
            ours.momentum_update(
                scheduled_momentum(ours.config.momentum, state.global_step, state.max_steps, self.schedule)
            )


class MemoryQueueCallback(TrainerCallback):
    """Enqueues the keys of all micro-batches and processes after the optimiser step.

    Every process gathers the same keys in the same order, so that queues stay equal without communication.

    Args:
        keys: Filled by the trainer.
    """

    def __init__(self, keys: StepKeys) -> None:
        self.keys = keys

    @torch.no_grad()
    def on_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        if not _was_skipped(optimizer, self.keys):
            ours = base_model(model)
            for language, *parts in self.keys.waiting:
                ours.enqueue(language, *(gather_rows(part) for part in parts))
        self.keys.waiting = []
