"""Momentum of encoders, and what belongs to one optimiser step: its keys, and whether it is dropped."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

MOMENTUM_SCHEDULES = ("constant", "linear", "cosine")


def momentum_pairs(base: nn.Module, average: nn.Module) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
    """Pairs of a trained parameter and its momentum counterpart, matched by name."""
    counterparts = dict(average.named_parameters())
    for name, parameter in base.named_parameters():
        if not parameter.requires_grad:
            continue
        if name not in counterparts:
            raise XlsrError(
                f"Trained parameter '{name}' has no momentum counterpart. Add adapters to the momentum encoders too, as "
                "hf_xlsr.trainers.adapters.add_adapters does; in sentence-transformers, add them before making the loss."
            )
        yield parameter, counterparts[name]


@torch.no_grad()
def update_averages(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], momentum: float) -> None:
    """Equation 1 in place: `momentum * average + (1 - momentum) * base` for each pair of base and average."""
    pairs = list(pairs)
    if pairs:
        averages = [average for _, average in pairs]
        torch._foreach_lerp_(averages, [base.detach().to(average) for base, average in pairs], 1 - momentum)


def scheduled_momentum(momentum: float, step: int, max_steps: int, schedule: str = "constant") -> float:
    """The momentum of a step: constant, or increasing from `momentum` to 1 during training (`linear`, `cosine`).

    Examples:
        >>> [round(scheduled_momentum(0.9, step, 10, "cosine"), 3) for step in (0, 5, 10)]
        [0.9, 0.95, 1.0]
    """
    if schedule == "constant":
        return momentum
    done = min(step / max(max_steps, 1), 1.0)
    left = 1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return 1 - (1 - momentum) * left


@dataclass
class StepKeys:
    """Keys of the current optimiser step, and whether the step is dropped, since its gradient was not finite.

    `waiting` has `(language, keys, texts, examples)` of each micro-batch and side, of this process only.
    """

    waiting: list[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    dropped: bool = False
    dropped_steps: int = 0


def was_skipped(optimizer: Any, keys: StepKeys) -> bool:
    """Whether this step had no effect: float16 overflow, or a gradient that is not finite."""
    return keys.dropped or bool(getattr(optimizer, "stepwas_skipped", False))


class SoundStepCallback(TrainerCallback):
    """Drops a step whose gradient is not finite: no update, no momentum, no keys. It logs the step and continues.

    Under float16 the gradient scaler drops the update and lowers its scale, which is normal at the start and logged as
    information. The scaler's own `step_was_skipped` is wrong for fused optimisers.
    """

    def __init__(self, keys: StepKeys) -> None:
        self.keys = keys

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.keys.waiting, self.keys.dropped = [], False

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **kwargs: Any
    ) -> None:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        if not gradients:
            return
        norm = torch.nn.utils.get_total_norm(gradients)
        # Gradients are averaged already, so all processes agree.
        if not torch.isfinite(norm):
            self.keys.dropped = True
            self.keys.dropped_steps += 1
            scaled = getattr(optimizer, "scaler", None) is not None
            if not scaled:
                model.zero_grad(set_to_none=True)  # optimisers ignore weights without gradient
            logger.log(
                logging.INFO if scaled else logging.WARNING,
                "Skipped step %d: its gradient is not finite (%s). Skipped so far: %d. Lower the learning rate if this "
                "happens often.",
                state.global_step + 1,
                float(norm),
                self.keys.dropped_steps,
            )
