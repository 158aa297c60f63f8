"""What happens once per optimiser step: the momentum encoders move, the step's keys enter the queues.

Both belong to the step, not to the forward pass: a forward may run twice (gradient checkpointing, evaluation), and the
keys of accumulated micro-batches have to enter together for accumulation to equal a larger batch.
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
from hf_xlsr.utils.errors import XlsrError, nearest

logger = logging.getLogger(__name__)

HALVES = (torch.bfloat16, torch.float16)
LARGE = 0.9  # from here on a step is a tenth of the difference, or less
MOMENTUM_SCHEDULES = ("constant", "linear", "cosine")


@dataclass
class StepKeys:
    """The keys that wait for the end of an optimiser step, and whether the step is to be dropped.

    Args:
        waiting: `(language, keys, texts, examples)` of each micro-batch and side, of this process alone.
        dropped: Whether this step's gradient was not finite.
        dropped_steps: How many steps were dropped in all.
    """

    waiting: list[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    dropped: bool = False
    dropped_steps: int = 0


def scheduled_momentum(momentum: float, step: int, max_steps: int, schedule: str = "constant") -> float:
    """The momentum of a step: constant, or rising from `momentum` towards 1 over the training.

    Args:
        momentum: At the start.
        step: Optimiser steps taken before this one.
        max_steps: Steps in all.
        schedule: `constant`, `linear` or `cosine`.

    Example:
        >>> [round(scheduled_momentum(0.9, step, 10, "cosine"), 3) for step in (0, 5, 10)]
        [0.9, 0.95, 1.0]
    """
    if schedule not in MOMENTUM_SCHEDULES:
        raise XlsrError(f"momentum_schedule is '{schedule}'; {nearest(schedule, MOMENTUM_SCHEDULES)}")
    if schedule == "constant":
        return momentum
    done = min(step / max(max_steps, 1), 1.0)
    left = 1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return 1 - (1 - momentum) * left


def _was_skipped(optimizer: Any, keys: StepKeys) -> bool:
    """Whether this step changed nothing: float16 overflow, or a gradient that is not finite."""
    return keys.dropped or bool(getattr(optimizer, "step_was_skipped", False))


class SoundStepCallback(TrainerCallback):
    """Drops the step when its gradient is not finite: no update, no momentum, no keys; says so and goes on.

    Under float16 the gradient scaler leaves the weights as they are and lowers its scale; that happens while it finds
    its scale and is only noted. Its own word on it, `step_was_skipped`, is wrong for fused optimisers.

    Args:
        keys: Shared with the other callbacks.
        scaled: Whether a gradient scaler watches the steps.
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
        # The same on every process: gradients are averaged by now.
        if not torch.isfinite(norm):
            self.keys.dropped = True
            self.keys.dropped_steps += 1
            if not self.scaled:
                model.zero_grad(set_to_none=True)  # an optimiser passes over weights without gradient
            logger.log(
                logging.INFO if self.scaled else logging.WARNING,
                "step %d was skipped: its gradient is not finite (%s). Nothing was learned from it and no key was "
                "stored; %d skipped so far. Lower the learning rate if it happens again.",
                state.global_step + 1,
                float(norm),
                self.keys.dropped_steps,
            )


class MomentumCallback(TrainerCallback):
    """Moves the momentum encoders after each optimiser step, equation 1.

    Args:
        keys: Shared with the other callbacks; says whether the step was dropped.
        schedule: See `scheduled_momentum`.

    Raises:
        XlsrError: at the start of the training, their weights are of half precision and their steps small.
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
                f"the momentum encoders hold {min(halved).removeprefix('torch.')} weights, in which the small steps of "
                f"momentum {momentum} are rounded away; keep the model in float32 (under DeepSpeed by precision float32)."
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
    """Enqueues the keys of all micro-batches and processes of a step, once the step has really happened.

    Every process gathers the same keys in the same order, so that queues stay equal without being sent around.

    Args:
        keys: Where the trainer collects them.
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
