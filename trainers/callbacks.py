"""Callbacks: epoch of the sampler, graceful stop, total training time."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed
from transformers import TrainerCallback

from hf_xlsr.utils.distributed import process_index
from hf_xlsr.utils.files import read_json, write_json

EPOCH_TOLERANCE = 1e-6  # less than the part of an epoch that a step is
STANDARD_ERROR = 2
STOP_MESSAGE = b"\nFinishing the step and saving a checkpoint. Repeat to stop at once, without a checkpoint.\n"


class SamplerEpochCallback(TrainerCallback):
    """Sets the epoch of the batch sampler, also when an epoch is resumed in the middle.

    Trainer sets it only on samplers that accelerate wrapped. Streams are one endless epoch.
    """

    def on_epoch_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        if train_dataloader.batch_size is None and train_dataloader.batch_sampler is None:
            return

        updates = -(-len(train_dataloader) // args.gradient_accumulation_steps)
        train_dataloader.batch_sampler.set_epoch(state.global_step // max(updates, 1))


class GracefulStopCallback(TrainerCallback):
    """Makes Ctrl-C (SIGINT) and SIGTERM finish the step, save a checkpoint and stop; a second one interrupts at once.

    Before the first step, for example while queues are filled, the first one interrupts: there is nothing to save.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.stopped = 0  # the number of a signal
        self._signalled = 0  # by a signal to this process; `stopped` may come from another process
        self._stepping = False
        self._previous: dict[int, Any] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._signalled or not self._stepping:
            previous = self._previous.get(number)
            if callable(previous):  # knows the signal
                previous(number, frame)
            raise KeyboardInterrupt
        self._signalled = number
        if process_index() == 0:
            # print is not reentrant in a signal handler. The terminal may be closed.
            with contextlib.suppress(OSError):
                os.write(STANDARD_ERROR, STOP_MESSAGE)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stopped = 0
        self._signalled = 0
        self._stepping = False

        # Python allows handlers in the main thread only. When Trainer restarts with a smaller batch size, handlers are
        # still installed.
        if threading.current_thread() is threading.main_thread() and not self._previous:
            self._previous = {number: signal.signal(number, self._handle) for number in self.SIGNALS}

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._stepping = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self.stopped = self._signalled
        if args.world_size > 1:
            # A signal reaches processes at different steps; they must stop at the same one.
            flag = torch.tensor(float(self._signalled), device=args.device)
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
            self.stopped = int(flag)

        if self.stopped:
            control.should_save = True
            control.should_training_stop = True
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        # Trainer ends the epoch also after a signal: an extra evaluation there would count for early stopping. A regular
        # one must be part of the checkpoint.
        if self.stopped:
            within_epoch = abs(state.epoch - round(state.epoch)) > EPOCH_TOLERANCE
            if within_epoch:
                control.should_evaluate = False
            else:
                control.should_save = True
        return control

    def restore(self) -> None:
        """Restores the previous signal handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}


class TrainingClockCallback(TrainerCallback):
    """Sums the seconds of training over all starts of a run, in `seconds.json` of the output folder.

    Work after the last checkpoint of a killed process is repeated and counted once.
    """

    FILE = "seconds.json"
    _before = _started = 0.0

    @classmethod
    def read(cls, folder: str | Path) -> float:
        """Total seconds; 0 for a new run."""
        file = Path(folder) / cls.FILE
        try:
            return float(read_json(file))
        except (OSError, ValueError, TypeError):  # new, or torn
            return 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._before = self.read(str(args.output_dir))
        self._started = time.monotonic()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            seconds = self._before + time.monotonic() - self._started
            write_json(Path(str(args.output_dir)) / self.FILE, round(seconds, 3))

    on_train_end = on_save
