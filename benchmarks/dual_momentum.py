"""Where a step of dual momentum contrast spends its time; momentum and enqueue together should take 3 % at most.

Runs `hf-xlsr train` on synthetic pairs and times the parts of each step from outside. `--encoders`: two folders,
with a comma, instead of random weights.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer import DEFAULT_CALLBACKS

from benchmarks import training
from benchmarks.harness import Job, Step, synchronize

SIDES = ("dual_momentum",)
DEFAULTS: Job = {"encoders": None, "batch": 128, "queue": 204_800, "words": 12, "width": 384, "layers": 12}
DEFAULTS |= {"vocabulary": 30_522, "steps": 8, "precision": "auto"}
QUICK: Job = {"batch": 8, "queue": 64, "words": 8, "width": 64, "layers": 1, "vocabulary": 1000, "steps": 2}
ALONE, MEMORY = True, False


class PartClock(TrainerCallback):
    """Seconds of a step's parts after the warm-up."""

    seconds: dict[str, float] = defaultdict(float)
    running = False

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed; encoders of keys are counted apart."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            synchronize()
            started = time.perf_counter()
            result = function(*args, **kwargs)
            synchronize()
            if self.running:
                keys = part == "encoders" and kwargs.get("keys")
                self.seconds["momentum encoders" if keys else part] += time.perf_counter() - started
            return result

        return wrapper

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        from hf_xlsr.modeling.dual_momentum import contrast

        self.seconds.clear()
        model: Any = kwargs["model"]
        parts = {"encoders": "encode_sentences", "momentum": "momentum_update", "enqueue": "enqueue"}
        for part, name in parts.items():
            setattr(model, name, self.timed(part, getattr(model, name)))
        self.replaced = [(contrast, "queue_info_nce", "loss"), (torch.Tensor, "backward", "backward")]
        self.replaced += [(torch.nn.utils, "get_total_norm", "gradient check")]
        self.originals = [getattr(owner, name) for owner, name, _ in self.replaced]
        for owner, name, part in self.replaced:
            setattr(owner, name, self.timed(part, getattr(owner, name)))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == training.WARM_UP:
            kwargs["optimizer"].step = self.timed("optimiser", kwargs["optimizer"].step)
            PartClock.running = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        PartClock.running = False
        for (owner, name, _), original in zip(self.replaced, self.originals, strict=True):
            setattr(owner, name, original)


def prepare(job: Job, sides: list[str]) -> Step:
    """Synthetic pairs, and random encoders unless folders are given."""
    scratch = tempfile.TemporaryDirectory()
    folder = Path(scratch.name)
    training.make_material(folder, job)
    encoders = (job["encoders"] or f"{folder}/encoder,{folder}/encoder").split(",")

    def step(side: str, warm_up: bool) -> dict[str, float]:
        if warm_up:
            return {}
        DEFAULT_CALLBACKS.append(PartClock)
        try:
            found = training.train_ours(side, Path(scratch.name), {**job, "encoders": encoders}, job["precision"])
        finally:
            DEFAULT_CALLBACKS.remove(PartClock)
        parts = {part: seconds / job["steps"] for part, seconds in PartClock.seconds.items()}
        share = (parts["momentum"] + parts["enqueue"]) / found["seconds"]
        return {**found, **parts, "else": found["seconds"] - sum(parts.values()), "momentum_and_enqueue": share}

    return step
