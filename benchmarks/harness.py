"""Harness of the speed cases: sides take turns in one process, memory is measured in a process per side.

A case is a module with

- `DEFAULTS` and `QUICK`: options of the command line, and smaller ones for `--quick`;
- `GRID`: name in the job -> list option; one group of table rows per combination of values;
- `SIDES`, or `sides(job)`: what is compared; ratios are to the last side, paired within each round;
- `prepare(job, sides)`: gives `step(side, warm_up)`, which does the work once, small when `warm_up`, and may return
  figures; `"seconds"` among them replaces the time on the clock.

With `ALONE = True` each side of each round runs in a process of its own; `WARM_UP = False` leaves out the warm-up, and
`ROUNDS` is the number of rounds if the command names none. Memory is measured unless `MEMORY = False`: the peak above
what was allocated before, by torch's allocator on a GPU, else resident memory by psutil. With `FREES = True`, for cases
that measure memory themselves, freed memory goes back to the system in every round.

A case for a page of docs/results/ also has `page(rows)`: Markdown that is printed instead of the table.

Results are kept for comparison with later ones, see `benchmarks.history`; not those of `--quick`, which are noise.

usage: python -m benchmarks CASE [--quick] [--rounds 3] [--threads 2] [--output FILE] [--history FILE]
                            [--OPTION VALUE ...]
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.history import HISTORY, append_results
from hf_xlsr.utils.files import write_json

Job = dict[str, Any]
Step = Callable[[str, bool], "dict[str, Any] | None"]
CASES = (
    "cmlm coverage engines exports filtering gradient_cache hictl meaning methods mining mining_memory negatives "
    "queue_info_nce queue_loss recall stored_vectors thresholds trainable_rows training_step"
).split()
# With these, glibc returns freed tensors to the system, so that memory is what is in use.
FREEING = {"MALLOC_MMAP_THRESHOLD_": "65536"}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_bytes(work: Callable[[], Any]) -> tuple[int, Any]:
    """Peak of memory during `work` above what was allocated before, and the result of `work`."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        result = work()
        synchronize()
        return torch.cuda.max_memory_allocated() - held, result
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # or the step reuses what preparation has freed
    process, done = psutil.Process(), threading.Event()
    held = peak = process.memory_info().rss

    def sample() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, process.memory_info().rss)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        result = work()
        peak = max(peak, process.memory_info().rss)
    finally:
        done.set()
        sampler.join()
    return peak - held, result


def timed(step: Step, side: str, warm_up: bool = False) -> tuple[float, dict[str, Any]]:
    synchronize()
    started = time.perf_counter()
    found = step(side, warm_up) or {}
    synchronize()
    return found.pop("seconds", time.perf_counter() - started), found


def loss_step(losses_of: Callable[[str, bool], Any], parameters: Sequence[Any], half: bool, keep: bool) -> Step:
    """Losses by name, then gradients; `keep`: those of the warm-up stay, so that memory is measured without them."""

    def step(side: str, warm_up: bool) -> dict[str, float]:
        for parameter in parameters:
            parameter.grad = None
        with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
            losses = losses_of(side, warm_up)
        sum(losses.values()).backward()
        for parameter in parameters if warm_up and not keep else ():
            parameter.grad = None
        return {name: float(loss.detach()) for name, loss in losses.items()}

    return step


def work(case: str, job: Job, sides: Sequence[str], rounds: int) -> dict[str, Any]:
    """Runs in the worker: rounds in turns or, with no rounds, the memory of the only side."""
    torch.set_num_threads(job["threads"])
    module = importlib.import_module(f"benchmarks.{case}")
    step: Step = module.prepare(job, list(sides))
    for side in sides if getattr(module, "WARM_UP", True) else ():
        timed(step, side, warm_up=True)  # libraries that load on first use are not part of a step
    if not rounds:
        return {"extra_bytes": peak_bytes(lambda: timed(step, sides[0]))[0]}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    figures: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for side in sides:
            took, figures[side] = timed(step, side)
            seconds[side].append(took)
    return {"seconds": seconds, "figures": figures}


def in_worker(arguments: Sequence[str], timeout: float | None = None, **variables: str) -> dict[str, Any]:
    """The JSON that a Python process prints last; its threads sleep while they wait, so that others are not slowed."""
    environment = {"OMP_WAIT_POLICY": "passive", **os.environ, **variables}
    command = [sys.executable, "-m", *arguments]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root, timeout=timeout)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)[:300]} failed:\n{done.stderr[-1500:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def jobs_of(case: str, options: Job) -> list[Job]:
    grid: dict[str, str] = getattr(importlib.import_module(f"benchmarks.{case}"), "GRID", {})
    shared = {key: value for key, value in options.items() if key not in grid.values()}
    combinations = itertools.product(*(options[name] for name in grid.values()))
    return [dict(zip(grid, values, strict=True)) | shared for values in combinations]


def sides_of(case: str, job: Job) -> list[str]:
    module = importlib.import_module(f"benchmarks.{case}")
    return list(module.SIDES if hasattr(module, "SIDES") else module.sides(job))


def measure(case: str, job: Job, rounds: int) -> list[dict[str, Any]]:
    """One table row per side of a job."""
    module = importlib.import_module(f"benchmarks.{case}")
    sides = sides_of(case, job)

    def worker(chosen: Sequence[str], count: int) -> dict[str, Any]:
        variables = FREEING if not count or getattr(module, "FREES", False) else {}
        return in_worker(["benchmarks", case, "--worker", json.dumps([job, chosen, count])], **variables)

    alone = getattr(module, "ALONE", False)
    turns = [worker([side], 1) for _ in range(rounds) for side in sides] if alone else [worker(sides, rounds)]
    seconds = {side: [one for turn in turns for one in turn["seconds"].get(side, ())] for side in sides}
    rows = []
    for side in sides:
        ratios = [one / other for one, other in zip(seconds[side], seconds[sides[-1]], strict=True)]
        row = {"side": side, "seconds": statistics.median(seconds[side]), "ratio": statistics.median(ratios)}
        row["range"] = [min(ratios), max(ratios)]
        for turn in turns:
            row |= turn["figures"].get(side, {})
        if getattr(module, "MEMORY", True):
            row["extra_bytes"] = worker([side], 0)["extra_bytes"]
        rows.append(row)
    for row in rows:
        if "extra_bytes" in row:
            row["memory_ratio"] = row["extra_bytes"] / max(rows[-1]["extra_bytes"], 1)
    return rows


def print_table(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """The rows for people; figures that no row has are no columns."""

    def cell(row: dict[str, Any], name: str) -> str:
        value = row.get(name)
        if name == "ratio":
            return f"{value:.2f} ({row['range'][0]:.2f}-{row['range'][1]:.2f})"
        if name.endswith("_bytes") and value is not None:
            return f"{value / 2**20:,.1f} MiB"
        return "" if value is None else f"{value:,.4g}" if isinstance(value, float) else str(value)

    table = Table(title=title)
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name != "range"]
    for name in names:
        table.add_column(name.replace("_", " "), justify="left" if name == "side" else "right")
    for row in rows:
        table.add_row(*(cell(row, name) for name in names))
    Console(width=180).print(table)


def hardware() -> dict[str, Any]:
    from hf_xlsr.runs.train import hardware_name

    name = hardware_name(torch.device(DEVICE))
    return {"hardware": name, "torch": torch.__version__, "load": os.getloadavg()[0]}


def machine_kind() -> str:
    """Processor or GPU, cores, widest instructions, and version of torch: what ratios depend on."""
    has_amx = getattr(torch.cpu, "_is_amx_tile_supported", bool)()
    instructions = "AMX" if has_amx else torch.backends.cpu.get_cpu_capability()
    machine = hardware()
    return f"{machine['hardware']}, {os.cpu_count()} cores, {instructions}, torch {machine['torch']}"


def run_case(case: str, options: Job, rounds: int, output: Path, history: Path | None) -> None:
    """Measures all jobs, writes their rows to `output`, adds them to `history`, and prints the table or page."""
    module = importlib.import_module(f"benchmarks.{case}")
    jobs = jobs_of(case, options)
    grid = getattr(module, "GRID", {})
    output.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for job in jobs:
        measured = measure(case, job, rounds)
        rows += [{key: job[key] for key in grid} | row for row in measured]
        write_json(output, {**hardware(), "options": options, "rounds": rounds, "rows": rows})
        if history is not None:
            reference = measured[-1]["side"]
            append_results(history, case, job, machine_kind(), [{"reference": reference, **row} for row in measured])
    settings = ", ".join(f"{key} {value}" for key, value in jobs[0].items() if key not in grid)
    title = f"{case}: {settings}"
    if hasattr(module, "page"):
        print(f"{title}\n")
        print("\n".join(module.page(rows)))
    else:
        print_table(title, rows)
    print(f"written to {output}")


def main() -> None:
    words = sys.argv[1:]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path)
    parser.add_argument("--history", type=Path, default=HISTORY)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    known, _ = parser.parse_known_args([word for word in words if word not in ("-h", "--help")] or ["--help"])
    if known.worker:
        from transformers import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        print(json.dumps(work(known.case, *json.loads(known.worker))))
        return
    module = importlib.import_module(f"benchmarks.{known.case}")
    values: Job = {**module.DEFAULTS, **(module.QUICK if known.quick else {})}
    for name, value in values.items():
        first = value[0] if isinstance(value, list) else value
        nargs = {"nargs": "*"} if isinstance(value, list) else {}
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(first), default=value, **nargs)
    options = vars(parser.parse_args())
    rounds = options["rounds"] or (1 if known.quick else getattr(module, "ROUNDS", 3))
    output = options["output"] or Path("outputs/benchmarks") / f"{known.case}.json"
    history = None if known.quick else options["history"]
    run_case(known.case, {name: options[name] for name in (*values, "threads")}, rounds, output, history)
