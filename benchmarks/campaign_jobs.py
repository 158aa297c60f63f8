"""The work of a campaign: trainings, controls and measurements as processes of their own, side by side, up to a deadline.

A job is done when what it writes is there and fits; so a campaign that was ended, or whose table has grown, does what is
missing and nothing twice. A training that the deadline interrupts leaves a checkpoint and goes on from it another time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

from campaign_plan import ROOT, Row, Run, Table, arguments, is_staged, only, resolved, run_of, seeded
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from hf_xlsr.encoders.fingerprint import content_hash
from hf_xlsr.evaluation.report import load_results
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.utils.files import atomic_write

PATIENCE = 300  # seconds for a checkpoint to be written after the deadline
# Trainings by sentence-transformers: script and options.
CONTROLS = {
    "mnrl": ("dual_momentum_peers.py", "--loss", "mnrl"),
    "distillation": ("distillation_peers.py",),
}
FINGERPRINT = "fingerprint.txt"  # in the folder of a training
# Of a process that was told to end and did.
ENDED = {0, 128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL}
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

    def begin(self) -> None:  # noqa: B027
        """Prepares the place that it writes to; called before its process."""

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


def place_of(run: Run) -> Path:
    """The folder of a training: of all its stages, where its recipe has some."""
    return run.output_dir if run.run and is_staged(run) else run.folder


def fingerprint_of_run(run: Run) -> str | None:
    """What the training that is there was of; None where there is none, or none that a campaign has begun."""
    file = place_of(run) / FINGERPRINT
    return file.read_text("utf-8") if file.is_file() else None


@dataclass(kw_only=True)
class Training(Job):
    """`hf-xlsr train`, or a control of sentence-transformers.

    Args:
        run: What is trained.
        fingerprint: Of recipe, time and starts; that of the run that is there stands in a file beside it.
        calibration: Says how many steps, where that is not the recipe's.
        started_from: Whether others go on from its weights, rather than from its exported encoder.
    """

    run: Run
    fingerprint: str
    calibration: Calibration | None = None
    started_from: bool = False

    def done(self) -> bool:
        if fingerprint_of_run(self.run) != self.fingerprint:
            return False
        if self.run.control:
            return (self.run.folder / "results.json").is_file() and (self.run.folder / "model").is_dir()
        if self.calibration and not self.calibration.done():
            return False
        return all(folder.done(recipe) for recipe, folder in self._stages()) and not self._lost_weights()

    def begin(self) -> None:
        place = place_of(self.run)
        before = fingerprint_of_run(self.run)
        doomed = place.with_name(f"{place.name}.old")
        if before not in (None, self.fingerprint) or self._lost_weights():
            # Under another name first: a removal that is killed half-way must not pass for a run of this recipe.
            shutil.rmtree(doomed, ignore_errors=True)
            place.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        place.mkdir(parents=True, exist_ok=True)
        if fingerprint_of_run(self.run) != self.fingerprint:
            with atomic_write(place / FINGERPRINT) as file:
                file.write_text(self.fingerprint, "utf-8")

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
        for _, folder in self._stages():
            for old in (*folder.training.glob("checkpoint-*"), *([] if self.started_from else [folder.final])):
                shutil.rmtree(old, ignore_errors=True)

    def _lost_weights(self) -> bool:
        """Whether others start from it and cannot: `tidy` has removed the weights of a run that nobody started from."""
        if self.run.control or not self.started_from:
            return False
        ended = [folder for _, folder in self._stages() if folder.results.is_file()]
        return not all(folder.final.is_dir() or folder.merged.is_dir() for folder in ended)

    def _stages(self) -> list[tuple[dict[str, Any], RunFolder]]:
        return [(recipe, RunFolder(recipe["output_dir"])) for recipe in resolved(self.run, self._steps())]

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


@dataclass(kw_only=True)
class Spaces(Job):
    """`peer_spaces.py` on the encoders of a table's rows, seed 1.

    Args:
        encoders: Measurements of them, for their names and folders, by the rows' labels.
        file: The picture.
    """

    encoders: Mapping[str, Measurement]
    file: Path

    def done(self) -> bool:
        if not self.file.is_file():
            return False
        folders = [one.model for one in self.encoders.values() if one.model]
        return all(folder.is_dir() and folder.stat().st_mtime <= self.file.stat().st_mtime for folder in folders)

    def command(self) -> list[str]:
        peers, ours = [], []
        for label, one in self.encoders.items():
            if one.model:
                ours.append(f"{one.label.partition('.')[0]}.{label}={one.model}")
            else:
                peers.append(one.label)
        return [*_python("peer_spaces.py"), "--peers", *peers, "--ours", *ours, "--output", str(self.file)]


def spaces_of(table: Table, home: Path, measured: Path) -> Spaces:
    """The picture of a table's spaces; arguments as of `measurement_of`."""
    rows = {row.label or row.name: row for row in map(table.row, table.spaces)}
    encoders = {label: measurement_of(table, row, 1, home, measured) for label, row in rows.items()}
    return Spaces(f"draw spaces of {table.name}", encoders=encoders, file=measured / f"{table.name}_spaces.png")


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


@dataclass(frozen=True)
class _Running:
    """A process that has begun."""

    job: Job
    process: subprocess.Popen[str]
    log: IO[str]
    log_begins: int
    started: float

    def minutes(self) -> float:
        return (time.monotonic() - self.started) / 60


def work_off(
    jobs: Iterable[Job],
    *,
    minutes: float,
    parallel: int,
    threads: int,
    logs: Path,
    console: Console,
    held: Sequence[int] = (),
) -> Outcome:
    """Runs what is not done yet, in order of the list, as far as the budget goes.

    Args:
        jobs: Each after those that it needs.
        minutes: Of the wall's time; 0 runs nothing.
        parallel: Processes at a time.
        threads: Of each process.
        logs: Folder for what the processes print.
        console: Says what has ended.
        held: Open files that the processes hold as well, such as a lock.
    """
    begun = time.monotonic()
    deadline = begun + 60 * minutes
    jobs = list(jobs)
    outcome, running = Outcome(), dict[str, _Running]()
    waiting: list[Job] = []
    logs.mkdir(parents=True, exist_ok=True)
    environment = {"OMP_WAIT_POLICY": "passive"} | os.environ | {"OMP_NUM_THREADS": str(threads)}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rest]}"))
    try:
        for job in jobs:
            if job.done():
                job.tidy()  # an earlier call may have been killed before it came to that
                outcome.states[job.name] = DONE
            else:
                waiting.append(job)
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("jobs", total=len(waiting), rest="")
            while running or (waiting and time.monotonic() < deadline):
                while waiting and len(running) < parallel and (job := _next(waiting, outcome)) is not None:
                    waiting.remove(job)
                    job.begin()
                    log = (logs / (re.sub(r"[^\w.+-]+", "-", job.name) + ".log")).open("a", encoding="utf-8")
                    process = subprocess.Popen(
                        job.command(),
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        text=True,
                        cwd=ROOT,
                        env=environment,
                        start_new_session=True,  # Ctrl-C comes to the campaign alone, which tells them once
                        pass_fds=held,
                    )
                    running[job.name] = _Running(job, process, log, log.tell(), time.monotonic())
                if not running:
                    break
                progress.update(
                    bar, rest=f"{', '.join(running)}; {max(0, (deadline - time.monotonic()) / 60):.0f} minutes left"
                )
                time.sleep(0.2)
                for name, one in list(running.items()):
                    if one.process.poll() is not None:
                        del running[name]
                        one.log.close()
                        _note(one, outcome, console)
                        progress.advance(bar)
                if time.monotonic() >= deadline:
                    break
    except KeyboardInterrupt:
        outcome.interrupted = True
    finally:
        _stop(running, outcome, console)
    outcome.left = [job.name for job in jobs if outcome.states.get(job.name) not in (DONE, FAILED)]
    outcome.minutes = (time.monotonic() - begun) / 60
    return outcome


def _next(waiting: Sequence[Job], outcome: Outcome) -> Job | None:
    """The first job whose needs are met."""
    return next((job for job in waiting if all(outcome.states.get(need.name) == DONE for need in job.needs)), None)


def _note(one: _Running, outcome: Outcome, console: Console) -> None:
    job, log = one.job, Path(one.log.name)
    if job.done():
        job.tidy()
        outcome.states[job.name] = DONE
        console.print(f"[green]done[/]    {job.name}, {one.minutes():.1f} minutes")
        return
    with log.open("rb") as file:
        file.seek(one.log_begins)  # earlier calls wrote to it, too
        lines = [line for line in re.split(r"[\r\n]+", file.read().decode("utf-8", "replace")) if line.strip()]
    code = one.process.returncode
    said = lines[-1].strip() if lines else "it printed nothing"
    if code < 0:
        said = f"ended by signal {-code}, after it said: {said}"
    outcome.states[job.name] = FAILED
    outcome.errors[job.name] = said
    console.print(f"[red]failed[/]  {job.name}: {escape(said)} (whole log: {log})")


def _stop(running: Mapping[str, _Running], outcome: Outcome, console: Console) -> None:
    """Ends what runs and waits for its checkpoints, together so long; a second interrupt of the call ends the waiting."""
    interrupts = int(outcome.interrupted)

    def count(*_: object) -> None:
        nonlocal interrupts
        interrupts += 1

    # Not as an exception, which could come between two lines of what follows. Who ignores a signal goes on ignoring it.
    numbers = [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) not in (signal.SIG_IGN, None)]
    handlers = {number: signal.signal(number, count) for number in numbers}
    try:
        for one in running.values():
            one.process.terminate()
        deadline = time.monotonic() + PATIENCE
        while interrupts < 2 and time.monotonic() < deadline:
            if all(one.process.poll() is not None for one in running.values()):
                break
            time.sleep(0.1)
        for name, one in running.items():
            one.process.kill()
            one.process.wait()
            one.log.close()
            if one.process.returncode not in ENDED or one.job.done():
                _note(one, outcome, console)  # a checkpoint that found no room on the disk is a failure, too
            else:
                outcome.states[name] = STOPPED
                console.print(f"stopped {name} after {one.minutes():.1f} minutes; another call takes it up again")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        outcome.interrupted |= interrupts > 0
