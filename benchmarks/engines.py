"""What runs the tasks of mining: a Ray cluster of this machine against a local pool, and many workers against one.

search: exact search both ways on made vectors in files, by as many workers. encode: made sentences by an encoder that
sleeps, so that more workers than cores can be compared; `efficiency` is the time of one worker by that of all, times
their number. `start` is how long the engine takes for its first task, and is in no other figure.

usage: python -m benchmarks engines [--kind encode] [--rows 200000] [--width 64] [--workers 2]
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Job, Step
from benchmarks.mining import make_sides
from hf_xlsr.mining import MiningOptions, neighbours_both_ways
from hf_xlsr.mining.stages import Job as MiningJob
from hf_xlsr.utils.ray_tasks import RayRunner
from hf_xlsr.utils.tasks import LocalPool, Runner, Task, import_ahead

DEFAULTS: Job = {"kind": "search", "rows": 200_000, "width": 64, "workers": 2, "sleep": 1.0, "shards": 64}
QUICK: Job = {"rows": 3000, "width": 16, "sleep": 0.01, "shards": 4}
WARM = {"RAY_idle_worker_killing_time_threshold_ms": "3600000"}  # workers stay after their first task
MEMORY = WARM_UP = False  # the workers have the memory; `start` is measured


def sides(job: Job) -> list[str]:
    if job["kind"] == "search":
        return ["ray", "pool"]
    return ["ray 1", "pool 1", f"ray {job['workers']}", f"pool {job['workers']}"]


class Sleeper:
    """An encoder that sleeps."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def encode(self, texts: list[str], **options: Any) -> np.ndarray:
        time.sleep(self.seconds)
        return np.array([[len(text), 1.0] for text in texts], np.float32)


def nothing(output: Path, content: Any) -> None:
    """Writes an empty file, when the modules of mining are imported."""
    import hf_xlsr.mining.stages

    _ = hf_xlsr.mining.stages
    output.touch()


def runner_of(side: str, workers: int) -> Runner:
    """The runner of a side; on a cluster tasks take shares of cores, so that more of them than cores run."""
    name, _, count = side.partition(" ")
    workers = int(count or workers)
    if name == "pool":
        import_ahead("hf_xlsr.mining.stages")
        return LocalPool(workers)
    return RayRunner(num_cpus=(os.cpu_count() or 1) / workers)


def warmed(runner: Runner, workers: int) -> float:
    """Seconds until every worker has run a task."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        tasks = [Task(Path(folder) / str(number)) for number in range(4 * workers)]
        for _ in runner.run(nothing, tasks):
            pass
        return time.perf_counter() - started


def search(runner: Runner, files: list[Path]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = (np.load(file, mmap_mode="r") for file in files)
        neighbours_both_ways(source, target, 4, method="exact", folder=folder, runner=runner)


def encode(runner: Runner, texts: list[str], seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mining = MiningJob(folder, MiningOptions(), {"source": texts}, Sleeper(seconds), runner=runner)
        with mining.claimed("mine", mining.plan):
            mining.encode(mining.read()[0])


def prepare(job: Job, sides: list[str]) -> Step:
    os.environ.update(WARM)
    scratch = tempfile.TemporaryDirectory()
    if job["kind"] == "search":
        files = [Path(scratch.name) / f"{side}.npy" for side in ("source", "target")]
        for file, vectors in zip(files, make_sides(job["rows"], job["width"]), strict=False):
            np.save(file, vectors.astype(np.float16))
        work = partial(search, files=files)
    else:
        # Shards have at least 1,024 sentences.
        texts = [f"sentence {number}" for number in range(1024 * job["shards"])]
        work = partial(encode, texts=texts, seconds=job["sleep"])
    starts: dict[str, float] = {}
    seconds: dict[str, float] = {}

    def step(side: str, warm_up: bool) -> dict[str, Any]:
        _ = scratch  # lives as long as the step
        runner = runner_of(side, job["workers"])
        if side not in starts:
            starts[side] = warmed(runner, job["workers"])
        started = time.perf_counter()
        work(runner)
        seconds[side] = time.perf_counter() - started
        figures = {"seconds": seconds[side], "start": starts[side]}
        name, _, count = side.partition(" ")
        if count:
            figures["efficiency"] = seconds[f"{name} 1"] / (int(count) * seconds[side])
        return figures

    return step
