"""Finding checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME

from hf_xlsr.utils.errors import XlsrError


def last_whole_checkpoint(folder: str | Path, processes: int = 1) -> Path | None:
    """The newest complete checkpoint; a killed process may leave an incomplete one.

    The main process writes `trainer_state.json` last, and every process its random state: a checkpoint with all of
    them is complete, and so is one that holds only weights.
    """
    random_states = ["rng_state.pth"]
    if processes > 1:
        random_states = [f"rng_state_{rank}.pth" for rank in range(processes)]

    checkpoints: dict[int, Path] = {}
    for path in Path(folder).glob("checkpoint-*"):
        step = path.name.rsplit("-", 1)[1]
        if step.isdigit():
            checkpoints[int(step)] = path

    for _, path in sorted(checkpoints.items(), reverse=True):
        try:
            json.loads((path / TRAINER_STATE_NAME).read_text("utf-8"))
        except (OSError, ValueError):
            continue
        if holds_only_weights(path) or all((path / name).is_file() for name in random_states):
            return path

    return None


def holds_only_weights(checkpoint: Path) -> bool:
    """Whether a checkpoint was saved with `save_only_model`; the main process saves its random state in every other."""
    return (checkpoint / TRAINER_STATE_NAME).is_file() and not any(checkpoint.glob("rng_state*.pth"))


def check_resumable(checkpoint: str | Path | bool | None) -> None:
    """Checks that training can resume: Trainer would go on at the step of a checkpoint, but with a new optimiser."""
    if isinstance(checkpoint, str | Path) and holds_only_weights(Path(checkpoint)):
        raise XlsrError(
            f"'{checkpoint}' was saved with `save_only_model`: training cannot resume from it. Start again, or from "
            "its weights: it as `model`, or as the recipe's `start_from`."
        )
