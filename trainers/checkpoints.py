"""Checkpoints: finding them, and how much disk a training takes, which is said before it starts."""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.filesize import decimal
from torch import nn
from transformers import TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, IntervalStrategy, SaveStrategy

from hf_xlsr.encoders.trainable_rows import saved_tensors
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.seals import broken_seal

logger = logging.getLogger(__name__)

# Values that an optimiser keeps for each trained one, by its class; others keep two, as Adam.
KEPT_VALUES = {"SGD": 0, "Adafactor": 0, "Adagrad": 1, "RMSprop": 1, "Lion": 1}
# Options of optimisers that keep one more.
FURTHER_VALUES = ("amsgrad", "momentum", "centered")


def last_whole_checkpoint(folder: str | Path, processes: int = 1) -> Path | None:
    """The newest complete checkpoint; a killed process may leave an incomplete one, a crash of the machine a torn one.

    The main process writes `trainer_state.json` last, and every process its random state: a checkpoint with all of
    them is complete, and so is one that holds only weights. One whose files differ from its seal is skipped with a
    warning.
    """
    random_states = ["rng_state.pth"]
    if processes > 1:
        random_states = [f"rng_state_{rank}.pth" for rank in range(processes)]

    for path in checkpoints_of(folder):
        torn = broken_seal(path)
        if torn:
            logger.warning("'%s' is torn; the checkpoint is skipped.", path / torn)
            continue
        try:
            json.loads((path / TRAINER_STATE_NAME).read_text("utf-8"))
        except (OSError, ValueError):
            continue
        if holds_only_weights(path) or all((path / name).is_file() for name in random_states):
            return path

    return None


def checkpoints_of(folder: str | Path) -> list[Path]:
    """The checkpoints in a folder, also incomplete ones, newest first."""
    checkpoints: dict[int, Path] = {}
    for path in Path(folder).glob("checkpoint-*"):
        step = path.name.rsplit("-", 1)[1]
        if step.isdigit():
            checkpoints[int(step)] = path
    return [checkpoints[step] for step in sorted(checkpoints, reverse=True)]


def holds_only_weights(checkpoint: Path) -> bool:
    """Whether a checkpoint was saved with `save_only_model`; the main process saves its random state in every other."""
    return (checkpoint / TRAINER_STATE_NAME).is_file() and not any(checkpoint.glob("rng_state*.pth"))


def check_resumable(checkpoint: str | Path | bool | None) -> None:
    """Checks that training can resume: Trainer would go on at the step of a checkpoint, but with a new optimiser."""
    if not isinstance(checkpoint, str | Path):
        return
    torn = broken_seal(checkpoint)
    if torn:
        raise XlsrError(
            f"'{Path(checkpoint) / torn}' is torn: training cannot resume from it. Use an older checkpoint."
        )
    if holds_only_weights(Path(checkpoint)):
        raise XlsrError(
            f"'{checkpoint}' was saved with `save_only_model`: training cannot resume from it. Start again, or from "
            "its weights: it as `model`, or as the recipe's `start_from`."
        )


@dataclass(frozen=True)
class TrainingSize:
    """What a training has on disk at once.

    Attributes:
        checkpoint: Bytes of a checkpoint.
        count: Number of checkpoints, also of one that is removed as soon as the next is whole.
        results: Bytes of what follows the training.
    """

    checkpoint: int
    count: int
    results: int = 0

    @property
    def total(self) -> int:
        return self.checkpoint * self.count + self.results

    def __str__(self) -> str:
        parts = []
        if self.results:
            parts.append(f"results of {decimal(self.results)}")
        if self.count:
            parts.insert(0, f"{self.count:,} checkpoint(s) of {decimal(self.checkpoint)}")
            parts[-1] += ". `save_total_limit`, `save_only_model` and `save_strategy` make it less"
        return f"Up to {decimal(self.total)} on disk: {', '.join(parts)}."


def weight_bytes(model: nn.Module) -> int:
    """Bytes of the weights and the buffers of a model, of shared ones once."""
    # peft keeps the first weights of what it trains as a whole.
    return sum(tensor.nbytes for name, tensor in saved_tensors(model) if ".original_module." not in name)


def optimizer_bytes(optimizer: Any) -> int:
    """Bytes of the state of an optimiser."""
    size = 0
    optimizer = getattr(optimizer, "optimizer", optimizer)  # inside of accelerate's
    kept_values = KEPT_VALUES.get(type(optimizer).__name__, 2)
    for group in optimizer.param_groups:
        further_values = sum(bool(group.get(option)) for option in FURTHER_VALUES)
        trained = sum(parameter.nbytes for parameter in group["params"])
        size += trained * (kept_values + further_values)
    return size


def saved_bytes(trainer: Any) -> int:
    """Bytes of a model and its tokenizers as a trainer saves them; of a model with adapters, only these."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if base_model(model) is model:
        size = weight_bytes(model)
    else:
        from peft import get_peft_model_state_dict

        adapters = get_peft_model_state_dict(model, save_embedding_layers=False)
        size = sum(tensor.nbytes for tensor in (*adapters.values(), *trainer.extra_state().values()))

    return size + tokenizer_bytes(trainer)


def tokenizer_bytes(trainer: Any) -> int:
    """Bytes of the tokenizers as a trainer saves them."""
    with TemporaryDirectory() as folder:
        trainer.save_tokenizers(Path(folder))
        return folder_bytes(folder)


def folder_bytes(*folders: str | Path) -> int:
    """Bytes of all files in some folders."""
    files = chain.from_iterable(Path(folder).rglob("*") for folder in folders)
    return sum(file.stat().st_size for file in files if file.is_file())


def checkpoints_at_once(args: Any, state: Any) -> int:
    """How many checkpoints a training has on disk at once: those that it keeps, and the one that it writes."""
    epochs: int = state.num_train_epochs
    if epochs > state.max_steps:  # a stream is one endless epoch
        epochs = 1

    interval = args.save_strategy
    steps = state.save_steps
    if interval == SaveStrategy.BEST:
        interval = args.eval_strategy
        steps = state.eval_steps
    if interval == IntervalStrategy.NO.value:
        return 0
    if interval == IntervalStrategy.EPOCH.value:
        saves = epochs
    else:
        saves = math.ceil(state.max_steps / (steps or state.max_steps))

    limit: int = args.save_total_limit or 0
    if limit <= 0:
        return saves
    if args.metric_for_best_model:
        limit = max(limit, 2)  # the best and the newest
    return min(saves, limit + 1)


class DiskSizeCallback(TrainerCallback):
    """Says before a training how much disk it takes, and warns if less is free.

    Args:
        trainer: The trainer.
        say: What shows the sentence.
        results: Bytes of what follows the training.
    """

    def __init__(self, trainer: Any, say: Callable[[str], None] = logger.info, results: int = 0) -> None:
        self.trainer = trainer
        self.say = say
        self.results = results

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return

        checkpoint = saved_bytes(self.trainer)
        if not args.save_only_model:
            checkpoint += optimizer_bytes(optimizer)
        size = TrainingSize(checkpoint, checkpoints_at_once(args, state), self.results)
        if not size.total:
            return
        self.say(str(size))

        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        written = folder_bytes(*folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"))
        free = shutil.disk_usage(folder).free
        if size.total > written + free:
            logger.warning("'%s' has %s free, but training may need %s.", folder, decimal(free), decimal(size.total))
