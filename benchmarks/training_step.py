"""One step of `DualMomentumTrainer` by what takes its time, with freed memory kept for the next step and mapped anew.

One encoder of the size of multilingual-e5-small, random weights and dropout 0.1, serves both languages; pairs are made.
Seconds on a CPU are those of the processor, so that other work beside counts little; the profiler's shares are of the
clock.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.autograd import DeviceType
from torch.profiler import profile
from transformers import TrainerCallback

from benchmarks.harness import DEVICE, Job, Step, synchronize
from benchmarks.training import WARM_UP, StepClock, encoder_sizes, make_material, read_pairs

ALONE = True
MEMORY = False
KEPT, ANEW = "memory kept", "memory anew"
SIDES = (KEPT, ANEW)
DEFAULTS: Job = {"vocabulary": 250_037, "width": 384, "layers": 12, "batch": 64, "words": 6, "steps": 6, "queue": 4096}
QUICK: Job = {"vocabulary": 9_000, "width": 64, "layers": 1, "batch": 8, "steps": 2, "queue": 64}
PROFILED = 2  # steps at the end, whose time is not counted
# Kinds of work by operators of torch; the rest is element-wise.
KINDS = {
    "products": "mm addmm bmm _scaled_dot_product_flash_attention_for_cpu",
    "zeroes": "fill_ zero_",
    "sums of gradients": "add_ add",
    "dropout masks": "bernoulli_",
    "copies": "copy_",
    "norms of the gradient": "linalg_vector_norm",
    "optimizer": "_fused_adamw_",
    "momentum": "lerp_",
}
KIND_OF = {f"aten::{name}": kind for kind, names in KINDS.items() for name in names.split()}


class StepProfile(TrainerCallback):
    """Seconds of the steps after the warm-up, then a profile of the last ones."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.profile = profile()  # of the processor, and of a GPU
        self.now = time.process_time if DEVICE == "cpu" else time.perf_counter

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        synchronize()
        if WARM_UP <= state.global_step <= args.max_steps - PROFILED:
            self.times.append(self.now())
        if state.global_step == args.max_steps - PROFILED:
            self.profile.start()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.profile.stop()

    def figures(self) -> dict[str, Any]:
        """The median of the seconds, and the share of each kind of work in percent."""
        microseconds = Counter[str]()
        for event in self.profile.key_averages():
            if event.device_type == DeviceType.CPU:  # a GPU's kernels are listed a second time
                spent = event.self_cpu_time_total if DEVICE == "cpu" else event.self_device_time_total
                microseconds[KIND_OF.get(event.key, "other")] += spent
        whole = microseconds.total()
        shares = {kind: 100 * microseconds[kind] / whole for kind in (*KINDS, "other")}
        steps = [after - before for before, after in zip(self.times, self.times[1:], strict=False)]
        return {"seconds": statistics.median(steps), "fastest_step": min(steps), **shares}


def prepare(job: Job, chosen: Sequence[str]) -> Step:
    def step(side: str, warm_up: bool) -> dict[str, Any]:
        if warm_up:
            return {}
        if side == ANEW:
            os.environ["GLIBC_TUNABLES"] = ""  # the trainer leaves the allocator alone; glibc has read it already
        with TemporaryDirectory() as folder:
            return train(Path(folder), job)

    return step


def train(folder: Path, job: Job) -> dict[str, Any]:
    """The figures of a training's steps, and its last loss, by which the sides are known to compute the same."""
    from hf_xlsr import DualMomentumModel
    from hf_xlsr.trainers import DualMomentumTrainer, DualMomentumTrainingArguments

    sizes = encoder_sizes(job["width"], job["layers"], job["vocabulary"])
    make_material(folder, {**job, **sizes})
    model = DualMomentumModel.from_encoders(
        str(folder / "encoder"),
        languages=["en", "fr"],
        queue_size=job["queue"],
        in_batch_negatives=True,
    )
    arguments = DualMomentumTrainingArguments(
        str(folder / "run"),
        max_steps=WARM_UP + job["steps"] + PROFILED,
        per_device_train_batch_size=job["batch"],
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    clock = StepClock()
    steps = StepProfile()
    trainer = DualMomentumTrainer(model, arguments, train_dataset=read_pairs(folder), callbacks=[clock, steps])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {**steps.figures(), "peak_bytes": clock.peak, "loss": repr(losses[-1])}
