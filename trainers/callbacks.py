"""Callbacks: the epoch of the sampler, and stopping cleanly."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

import torch
import torch.distributed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class SamplerEpochCallback(TrainerCallback):
    """Tells the batch sampler which epoch begins, also in the middle of one that is resumed.

    Trainer passes the epoch on only to samplers that accelerate wrapped, and on resume under several processes not
    even to those.
    """

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        updates = -(-len(train_dataloader) // args.gradient_accumulation_steps)
        train_dataloader.batch_sampler.set_epoch(state.global_step // max(updates, 1))


class GracefulStopCallback(TrainerCallback):
    """Makes Ctrl-C (SIGINT) and SIGTERM finish the step, save a checkpoint and stop; a second one interrupts at once.

    Attributes:
        stopped: Whether a signal ended the training.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.stopped = False
        self._previous: dict[int, Any] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.stopped:
            raise KeyboardInterrupt
        self.stopped = True

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.stopped = False
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            self._previous = {number: signal.signal(number, self._handle) for number in self.SIGNALS}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if args.world_size > 1:
            # A signal reaches the processes at different steps; they have to stop at the same one.
            flag = torch.tensor(float(self.stopped), device=args.device)
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
            self.stopped = bool(flag)
        if self.stopped:
            control.should_save = control.should_training_stop = True
        return control

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
