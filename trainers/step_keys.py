"""The keys of an optimiser step, and callbacks that know them: a step whose gradient is not finite is dropped."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainerCallback

logger = logging.getLogger(__name__)


@dataclass
class StepKeys:
    """Keys of the current optimiser step, and whether the step is dropped, since its gradient was not finite.

    `waiting` has `(language, keys, texts, examples)` of each micro-batch and side, of this process only.
    """

    waiting: list[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    dropped: bool = False
    dropped_steps: int = 0


class StepCallback(TrainerCallback):
    """A callback that knows the keys of the current step."""

    def __init__(self, keys: StepKeys) -> None:
        self.keys = keys


class SoundStepCallback(StepCallback):
    """Drops a step whose gradient is not finite: no update, no momentum, no keys. It logs the step and continues.

    Under float16 the gradient scaler drops the update and lowers its scale, which is normal at the start and logged as
    information. The scaler's own `step_was_skipped` is wrong for fused optimisers.
    """

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.keys.waiting = []
        self.keys.dropped = False

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **kwargs: Any
    ) -> None:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        if not gradients:
            return

        # Gradients are averaged already, so all processes agree.
        norm = torch.nn.utils.get_total_norm(gradients)
        if not torch.isfinite(norm):
            self.keys.dropped = True
            self.keys.dropped_steps += 1
            level = logging.INFO
            if getattr(optimizer, "scaler", None) is None:
                level = logging.WARNING
                model.zero_grad(set_to_none=True)  # optimisers ignore weights without gradient

            logger.log(
                level,
                "Skipped step %d: its gradient is not finite (%s). Skipped so far: %d. Lower the learning rate if this "
                "happens often.",
                state.global_step + 1,
                float(norm),
                self.keys.dropped_steps,
            )
