"""A training whose processes all get a signal after a step, workers of its loader included.

Runs in a session of its own: the signal is not for the processes that test.
"""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

from conftest import make_pairs
from forked_command import start_workers_by_fork
from lightweight_trainers import trainer_of
from transformers import TrainerCallback

from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.tokenization import train_tokenizer


class SignalAfter(TrainerCallback):
    """Sends what a terminal's Ctrl-C or a launcher sends to the group, or a scheduler to each process."""

    def __init__(self, number: int, step: int, each: bool) -> None:
        self.number, self.step, self.each = number, step, each

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step != self.step:
            return
        if not self.each:
            os.killpg(os.getpgrp(), self.number)
            return
        workers = [child.pid for child in multiprocessing.active_children() if child.pid]
        assert workers
        for process in (*workers, os.getpid()):
            os.kill(process, self.number)


def main(folder: Path, number: int, step: int, each: bool, log: Path) -> None:
    """Trains until the signal; `each` sends it to one process after the other, and not to their group."""
    os.setsid()
    start_workers_by_fork()
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    pairs = make_pairs(200)
    texts = [pair[side] for pair in pairs for side in ("source", "target")]
    tokenizer = train_tokenizer(texts, vocab_size=80, algorithm="bpe", max_length=32)
    prepared = DataConverter(tokenizer, max_length=32).pairs(pairs)
    # A step takes more batches than a worker loads ahead: the one that is finished needs the worker.
    options = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "dataloader_num_workers": 1}
    trainer = trainer_of(tokenizer, prepared, folder, **options)
    trainer.add_callback(SignalAfter(number, step, each))
    try:
        trainer.train()
    except KeyboardInterrupt:
        assert trainer.stopped_early
    else:
        raise AssertionError("The training went on.")
