"""Finding checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME


def last_whole_checkpoint(folder: str | Path, processes: int = 1) -> Path | None:
    """The newest complete checkpoint; a killed process may leave an incomplete one.

    The main process writes `trainer_state.json` last, and every process its random state: a checkpoint with all of
    them is complete.
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
        if all((path / name).is_file() for name in random_states):
            return path

    return None
