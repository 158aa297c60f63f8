"""A training whose whole process group gets a signal after a step, workers of its loader included.

Run as a script in a session of its own: `signalled_training.py FOLDER SIGNAL STEP`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from conftest import make_pairs
from datasets import Dataset
from lightweight_trainers import trainer_of
from transformers import TrainerCallback

from hf_xlsr.data.prepared import PreparedPairs, tokenize_pairs
from hf_xlsr.data.tokenization import train_tokenizer


class SignalGroupAfter(TrainerCallback):
    """Sends what a terminal's Ctrl-C or a launcher sends."""

    def __init__(self, number: int, step: int) -> None:
        self.number, self.step = number, step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            os.killpg(os.getpgrp(), self.number)


def main(folder: Path, number: int, step: int) -> None:
    pairs = make_pairs(200)
    texts = [pair[side] for pair in pairs for side in ("source", "target")]
    tokenizer = train_tokenizer(texts, vocab_size=80, algorithm="bpe", max_length=32)
    prepared = PreparedPairs(tokenize_pairs(Dataset.from_list(pairs), tokenizer, max_length=32)[0])
    # A step takes more batches than a worker loads ahead: the one that is finished needs the worker.
    options = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "dataloader_num_workers": 1}
    trainer = trainer_of(tokenizer, prepared, folder, **options)
    trainer.add_callback(SignalGroupAfter(number, step))
    trainer.train()
    assert trainer.stopped_early


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
