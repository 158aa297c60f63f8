"""What benchmarks share that time steps: devices, jobs in processes of their own, taking turns, a watch for trainers."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import TrainerCallback

Job = dict[str, Any]


def check_device(parser: argparse.ArgumentParser, device: str) -> None:
    """Ends with a sentence where a device is not one, or a GPU is asked for and none is there."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        parser.error(f"--device is {device}, which torch does not know; write cpu, cuda or cuda:1")
    if kind == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device is {device} but torch finds no GPU; leave it out")


def synchronize() -> None:
    """Waits for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def run_job(script: str, job: Job) -> dict[str, Any]:
    """What `script --worker JOB` prints on its last line, from a process of its own whose threads wait asleep."""
    command = [sys.executable, script, "--worker", json.dumps(job)]
    # Threads that spin while they wait keep others from the cores that they wait for, as soon as anything else runs.
    environment = {"OMP_WAIT_POLICY": "passive"} | os.environ
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return report


def time_in_turns(step: Callable[[str], None], sides: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Seconds of each side's step by round; a first round warms up and does not count."""
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(rounds + 1):
        for side in sides:
            started = time.perf_counter()
            step(side)
            if turn:
                seconds[side].append(time.perf_counter() - started)
    return seconds


def ratios(seconds: Sequence[float], others: Sequence[float]) -> list[float]:
    """One side's seconds over another's, round by round."""
    return [one / other for one, other in zip(seconds, others, strict=True)]


class StopWatch(TrainerCallback):
    """The processor's time at which a training's first step began, and at which each of its steps ended."""

    def __init__(self) -> None:
        self.made = self.begun = time.process_time()
        self.ends: list[float] = []

    def seconds_before(self) -> float:
        """Processor time from here to the first step: filled queues, a loop's beginning."""
        return self.begun - self.made

    def seconds_per_step(self, warm_up: int) -> float:
        """Processor time of a step, those of a warm-up not counted."""
        return (self.ends[-1] - self.ends[warm_up - 1]) / (len(self.ends) - warm_up)

    def steps_within(self, seconds: float, warm_up: int) -> int:
        """How many steps a training of so much processor time gets, what comes before the first one counted."""
        return max(1, int((seconds - self.seconds_before()) / self.seconds_per_step(warm_up)))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.ends:
            self.begun = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ends.append(time.process_time())
