"""Once per optimiser step: the momentum encoders are updated and the step's keys enter the queues.

Neither belongs to the forward pass, which may run twice (gradient checkpointing, evaluation). Keys of accumulated
micro-batches must enter together for accumulation to equal a larger batch.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback

from hf_xlsr.modeling.dual_momentum.momentum import StepKeys, scheduled_momentum, was_skipped
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.utils.distributed import gather_rows
from hf_xlsr.utils.errors import XlsrError

HALVES = (torch.bfloat16, torch.float16)
LARGE = 0.9  # above, a step is at most a tenth of the difference


class MomentumCallback(TrainerCallback):
    """Updates the momentum encoders after each optimiser step that was not skipped, equation 1.

    For `schedule` see `scheduled_momentum`. Momentum encoders of half precision would not move by small updates.
    """

    def __init__(self, keys: StepKeys | None = None, schedule: str = "constant") -> None:
        self.keys, self.schedule = keys or StepKeys(), schedule

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
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
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **kwargs: Any
    ) -> None:
        if not was_skipped(optimizer, self.keys):
            ours = base_model(model)
            ours.momentum_update(
                scheduled_momentum(ours.config.momentum, state.global_step, state.max_steps, self.schedule)
            )


class MemoryQueueCallback(TrainerCallback):
    """Enqueues the keys of all micro-batches and processes after the optimiser step.

    Every process gathers the same keys in the same order, so that queues stay equal without communication.
    """

    def __init__(self, keys: StepKeys) -> None:
        self.keys = keys

    @torch.no_grad()
    def on_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **kwargs: Any
    ) -> None:
        if not was_skipped(optimizer, self.keys):
            ours = base_model(model)
            for language, *parts in self.keys.waiting:
                ours.enqueue(language, *(gather_rows(part) for part in parts))
        self.keys.waiting = []
