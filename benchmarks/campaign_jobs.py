"""The work of a campaign: trainings, controls and measurements as processes of their own, side by side, up to a deadline.

A job is done when what it writes is there and fits; so a campaign that was ended, or whose table has grown, does what is
missing and nothing twice. A training that the deadline interrupts leaves a checkpoint and goes on from it another time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO

from campaign_plan import ROOT, Row, Run, Table, arguments, only, resolved, run_of, seeded
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from hf_xlsr.evaluation.content_hash import content_hash
from hf_xlsr.evaluation.report import load_results
from hf_xlsr.run_folder import RunFolder

PATIENCE = 300  # seconds for a checkpoint to be written after the deadline
# Trainings by sentence-transformers: script and options.
CONTROLS = {
    "mnrl": ("dual_momentum_peers.py", "--loss", "mnrl"),
    "distillation": ("distillation_peers.py",),
}
# What failed is not tried again by the same call; nor is what needs it.
DONE, FAILED, STOPPED = "done", "failed", "stopped"


@dataclass
class Job(ABC):
    """A process that leaves files.

    Args:
        name: Said in messages and in the log's name.
        needs: Jobs that come before it.
        wanted: Whether it is to be done, rather than kept among the campaign's figures already.
    """

    name: str
    needs: tuple[Job, ...] = ()
    wanted: bool = field(default=True, kw_only=True)

    @abstractmethod
    def done(self) -> bool:
        """Whether its files are there already."""

    @abstractmethod
    def command(self) -> list[str]:
        """What runs in the process; asked for when all that it needs is done."""

    def tidy(self) -> None:  # noqa: B027
        """Removes what nobody needs once it is done; nothing, unless a kind of job says otherwise."""


@dataclass(kw_only=True)
class Calibration(Job):
    """Finds how many steps a run gets out of its processor time, once for all its seeds."""

    run: Run
    file: Path

    def done(self) -> bool:
        return self.file.is_file()

    def steps(self) -> int:
        """What was found."""
        found: int = json.loads(self.file.read_text("utf-8"))["steps"]
        return found

    def command(self) -> list[str]:
        run = self.run
        time_and_place = ["--seconds", str(run.seconds), "--file", str(self.file)]
        return [*_python("campaign_calibrate.py"), run.recipe, *only(run), *time_and_place, *seeded(run)]


@dataclass(kw_only=True)
class Training(Job):
    """`hf-xlsr train`, or a control of sentence-transformers.

    Args:
        run: What is trained.
        calibration: Says how many steps, where that is not the recipe's.
        started_from: Whether others go on from its weights, rather than from its exported encoder.
    """

    run: Run
    calibration: Calibration | None = None
    started_from: bool = False

    def done(self) -> bool:
        if self.run.control:
            return (self.run.folder / "results.json").is_file() and (self.run.folder / "model").is_dir()
        if self.calibration and not self.calibration.done():
            return False
        recipes = resolved(self.run, self._steps())
        return all(RunFolder(recipe["output_dir"]).done(recipe) for recipe in recipes)

    def command(self) -> list[str]:
        run = self.run
        if not run.control:
            return [sys.executable, str(ROOT / "train.py"), run.recipe, *only(run), *arguments(run, self._steps())]
        script, *more = CONTROLS[run.control]
        time_and_place = ["--seconds", str(run.seconds), "--output", str(run.folder)]
        return [*_python(script), run.recipe, *more, *only(run), *time_and_place, *seeded(run)]

    def tidy(self) -> None:
        if self.run.control:
            return
        # Checkpoints of an encoder like e5-small are 1.4 GB each, its last weights half a GB; the finished model stays.
        for recipe in resolved(self.run, self._steps()):
            folder = RunFolder(recipe["output_dir"])
            for old in (*folder.training.glob("checkpoint-*"), *([] if self.started_from else [folder.final])):
                shutil.rmtree(old, ignore_errors=True)

    def _steps(self) -> int | None:
        return self.calibration.steps() if self.calibration else None


@dataclass(kw_only=True)
class Measurement(Job):
    """`peers.py` on one encoder, a run's or one of HF_XLSR_ENCODERS: units that the tables of its rows ask for."""

    label: str
    model: Path | None
    units: Sequence[str]
    output: Path

    def done(self) -> bool:
        return self.metrics().keys() == set(self.units)

    def metrics(self) -> dict[str, dict[str, float]]:
        """What the encoder as it is now was measured at, by unit; nothing of one that has gone or changed since."""
        folder = self.model or Path(os.environ.get("HF_XLSR_ENCODERS", "")) / self.label
        files = {unit: self.output / self.label / f"{unit}.json" for unit in self.units}
        found = {unit: load_results(file) for unit, file in files.items() if file.is_file()}
        if not found or not folder.is_dir():
            return {}
        revision = _revision(folder, sum(path.stat().st_mtime_ns for path in folder.rglob("*")))
        return {unit: of["metrics"] for unit, of in found.items() if of["settings"].get("revision") == revision}

    def command(self) -> list[str]:
        which = ["--peers", "--ours", f"{self.label}={self.model}"] if self.model else ["--peers", self.label]
        return [*_python("peers.py"), *which, "--units", *self.units, "--output", str(self.output)]


def measurement_of(table: Table, row: Row, seed: int, home: Path, measured: Path) -> Measurement:
    """The measurement behind a row; rows that are the same run have the same label, by which peers.py knows them.

    Args:
        table: Of the row; its units are measured.
        row: One of its rows.
        seed: One of the row's seeds.
        home: The campaign's folder of runs.
        measured: Folder that peers.py writes to.
    """
    run = run_of(table, row, seed, home)
    if run is None:
        return Measurement(
            f"measure {row.encoder}", label=str(row.encoder), model=None, units=table.units, output=measured
        )
    label = f"{table.languages}.{'-'.join(run.folder.relative_to(home).parts).replace('.', '_')}"
    return Measurement(f"measure {label}", label=label, model=run.folder / "model", units=table.units, output=measured)


@cache
def _revision(folder: Path, changed: int) -> str:
    # The same encoder is in many tables, and a campaign's encoders are tens of GB.
    return content_hash(folder)


def _python(script: str) -> list[str]:
    return [sys.executable, str(ROOT / "benchmarks" / script)]


@dataclass
class Outcome:
    """What became of the jobs.

    Args:
        states: Name of each job that was done before or begun -> done, failed or stopped.
        left: Names of those that were not begun, or not ended.
        errors: Name -> last line that a failed job said.
        minutes: Of the call.
        interrupted: Whether a signal ended it before its budget.
    """

    states: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    minutes: float = 0.0
    interrupted: bool = False


def work_off(
    jobs: Iterable[Job], *, minutes: float, parallel: int, threads: int, logs: Path, console: Console
) -> Outcome:
    """Runs what is not done yet, in order of the list, as far as the budget goes.

    Args:
        jobs: Each after those that it needs.
        minutes: Of the wall's time; 0 runs nothing.
        parallel: Processes at a time.
        threads: Of each process.
        logs: Folder for what the processes print.
        console: Says what has ended.
    """
    begun = time.monotonic()
    deadline = begun + 60 * minutes
    outcome, running = Outcome(), dict[str, tuple[Job, subprocess.Popen[str], IO[str], float]]()
    waiting: list[Job] = []
    for job in jobs:
        if job.done():
            outcome.states[job.name] = DONE
        else:
            waiting.append(job)
    logs.mkdir(parents=True, exist_ok=True)
    environment = {"OMP_WAIT_POLICY": "passive"} | os.environ | {"OMP_NUM_THREADS": str(threads)}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rest]}"))
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("jobs", total=len(waiting), rest="")
            while running or (waiting and time.monotonic() < deadline):
                while waiting and len(running) < parallel and (job := _next(waiting, outcome)) is not None:
                    waiting.remove(job)
                    log = (logs / (re.sub(r"[^\w.+-]+", "-", job.name) + ".log")).open("a", encoding="utf-8")
                    process = subprocess.Popen(
                        job.command(),
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        text=True,
                        cwd=ROOT,
                        env=environment,
                        start_new_session=True,  # Ctrl-C comes to the campaign alone, which tells them once
                    )
                    running[job.name] = (job, process, log, time.monotonic())
                if not running:
                    break
                progress.update(
                    bar, rest=f"{', '.join(running)}; {max(0, (deadline - time.monotonic()) / 60):.0f} minutes left"
                )
                time.sleep(0.2)
                for name, (job, process, log, started) in list(running.items()):
                    if process.poll() is not None:
                        del running[name]
                        log.close()
                        _note(job, Path(log.name), time.monotonic() - started, outcome, console)
                        progress.advance(bar)
                if time.monotonic() >= deadline:
                    break
    except KeyboardInterrupt:
        outcome.interrupted = True
    finally:
        _stop(running, outcome, console)
    outcome.left = [job.name for job in waiting] + [name for name, state in outcome.states.items() if state == STOPPED]
    outcome.minutes = (time.monotonic() - begun) / 60
    return outcome


def _next(waiting: Sequence[Job], outcome: Outcome) -> Job | None:
    """The first job whose needs are met."""
    return next((job for job in waiting if all(outcome.states.get(need.name) == DONE for need in job.needs)), None)


def _note(job: Job, log: Path, seconds: float, outcome: Outcome, console: Console) -> None:
    if job.done():
        job.tidy()
        outcome.states[job.name] = DONE
        console.print(f"[green]done[/]    {job.name}, {seconds / 60:.1f} minutes")
        return
    lines = [line for line in re.split(r"[\r\n]+", log.read_text("utf-8", errors="replace")) if line.strip()]
    outcome.states[job.name] = FAILED
    outcome.errors[job.name] = lines[-1].strip() if lines else "it printed nothing"
    console.print(f"[red]failed[/]  {job.name}: {escape(outcome.errors[job.name])} (whole log: {log})")


def _stop(
    running: dict[str, tuple[Job, subprocess.Popen[str], IO[str], float]], outcome: Outcome, console: Console
) -> None:
    """Interrupts what runs and waits for its checkpoints."""
    for _, process, _, _ in running.values():
        process.terminate()
    for name, (job, process, log, started) in running.items():
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()
        if job.done():
            outcome.states[name] = DONE
        else:
            outcome.states[name] = STOPPED
            console.print(
                f"stopped {name} after {(time.monotonic() - started) / 60:.1f} minutes; another call goes on from there"
            )
