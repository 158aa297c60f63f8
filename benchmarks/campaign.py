"""The papers' comparisons on real data at a small size, as a resumable campaign that writes its part of docs/results.md.

Trains what benchmarks/campaign_tables.yaml lists, measures every encoder, and writes tables with the spread of the seeds,
a verdict for each claim, plots and model cards. Runs that are done are not repeated, nor those whose figures
docs/campaign_figures.json keeps; a training that the budget or a signal interrupts goes on from its checkpoint at the
next call. Text and encoders come through HF_XLSR_DATA and HF_XLSR_ENCODERS (docs/data.md). A GPU is used when there is
one; give --jobs 1 then.

usage: python benchmarks/campaign.py --budget-minutes N [--only TABLE ...] [--jobs 2] [--output outputs/campaign]
With --budget-minutes 0 nothing is trained: it says what is left and writes the page from what is there.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from campaign_figures import Figures
from campaign_fingerprint import VARIABLES, training_fingerprint
from campaign_jobs import (
    DONE,
    FAILED,
    Calibration,
    Job,
    Measurement,
    Outcome,
    Training,
    measurement_of,
    place_of,
    spaces_of,
    work_off,
)
from campaign_plan import ROOT, Row, Table, read_tables, run_of, starts_of_all
from campaign_report import campaign_lines, drop_pictures, picture_of, run_is_of, write_page
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from hf_xlsr.utils.errors import XlsrError

TABLES = ROOT / "benchmarks" / "campaign_tables.yaml"
PAGE = ROOT / "docs" / "results.md"
FIGURES = ROOT / "docs" / "campaign_figures.json"


def plan(tables: Sequence[Table], output: Path, kept: Figures, images: Path) -> dict[str, list[Job]]:
    """Jobs by table, each job once and after those that it needs: seed 1 of all tables' rows before other seeds.

    Wanted are the measurements of rows whose figures are not kept, what pictures of languages and of spaces need that are
    not there, and the trainings that these rest on.
    """
    home, measured = output / "runs", output / "measured"
    jobs: dict[str, Job] = {}
    measurements: dict[str, Measurement] = {}
    by_table: dict[str, list[Job]] = {table.name: [] for table in tables}
    for seed in range(1, 1 + max(len(table.seeds(row)) for table in tables for row in table.rows)):
        for table in tables:
            for row in (row for row in table.rows if seed in table.seeds(row)):
                trainings = _trainings(table, row, seed, output, jobs)
                _add(by_table[table.name], *trainings)
                wanted = not row.hidden and not kept.has(table, row, seed)  # hidden ones by those that start from them
                if seed == 1 and row.name in table.histograms:
                    wanted |= not picture_of(table, images, "languages").is_file()
                for training in trainings:
                    training.wanted |= wanted
                if table.units and not row.hidden:
                    own = measurement_of(table, row, seed, home, measured)
                    job = measurements.setdefault(own.name, replace(own, units=(), wanted=False))
                    job.needs = tuple(trainings[-1:])
                    job.wanted |= wanted
                    if wanted:
                        job.units = sorted({*job.units, *own.units})  # those of all tables that show the encoder
                    _add(by_table[table.name], job)
    for table in (table for table in tables if table.spaces):
        picture = spaces_of(table, home, measured)
        rows = [table.row(name) for name in table.spaces]
        picture.needs = tuple(job for row in rows for job in _trainings(table, row, 1, output, jobs)[-1:])
        picture.wanted = not picture_of(table, images, "spaces").is_file()
        jobs[picture.name] = picture
        _add(by_table[table.name], picture)
    for job in jobs.values():
        if job.wanted:
            _want_needs(job)
    return by_table


def _want_needs(job: Job) -> None:
    # A calibration is shared by the seeds of a row, and rests on what seed 1 starts from.
    for need in job.needs:
        need.wanted = True
        _want_needs(need)


def _trainings(table: Table, row: Row, seed: int, output: Path, jobs: dict[str, Job]) -> list[Job]:
    """The training of a row and, before it, all that it needs, those of the rows that it starts from among them."""
    run = run_of(table, row, seed, output / "runs")
    if run is None:
        return []
    before: list[Job] = []
    needs: list[Job] = []
    for other_table, other in table.starts(row).values():
        known = other_table.seeds(other)
        before += _trainings(other_table, other, seed if seed in known else 1, output, jobs)
        needs.append(before[-1])
    # One process trains all stages of a recipe, whichever of them rows show.
    name = " ".join(place_of(run).relative_to(output / "runs").parts)
    fingerprint, calibration = training_fingerprint(table, row), None
    if run.seconds and not run.control:
        first = " ".join(part for part in name.split() if not part.startswith("seed-"))
        file = output / "steps" / f"{first.replace(' ', '-')}-{fingerprint}.json"
        calibration = Calibration(f"calibrate {first}", tuple(needs), run=run, file=file, wanted=False)
        needs.append(jobs.setdefault(calibration.name, calibration))
        before.append(needs[-1])
    started_from = str(run.folder) in starts_of_all(table, output / "runs")
    training = Training(
        f"train {name}", tuple(needs), run=run, fingerprint=fingerprint, calibration=calibration, wanted=False
    )
    shared = jobs.setdefault(training.name, training)  # by the rows that show its stages
    if isinstance(shared, Training):
        shared.started_from |= started_from
    return [*before, shared]


def is_trained(output: Path, table: Table, row: Row, seed: int) -> bool:
    """Whether the run of a row's seed has ended, by the recipe as it is now; an encoder as it came has none."""
    trainings = _trainings(table, row, seed, output, {})
    return not trainings or trainings[-1].done()


def _add(jobs: list[Job], *more: Job) -> None:
    jobs += [job for job in more if job not in jobs]


def status_table(by_table: dict[str, list[Job]], outcome: Outcome) -> RichTable:
    """How many jobs of each table are done, left or failed."""
    shown = RichTable(title="Campaign")
    for heading in ("table", "done", "left", "failed"):
        shown.add_column(heading, justify="left" if heading == "table" else "right")
    for name, jobs in by_table.items():
        states = [outcome.states.get(job.name) if job.wanted else DONE for job in jobs]
        done, failed = states.count(DONE), states.count(FAILED)
        shown.add_row(name, str(done), str(len(jobs) - done - failed), str(failed))
    return shown


def write_cards(tables: Sequence[Table], home: Path, folder: Path, console: Console) -> list[Path]:
    """Model cards of the runs that tables name for that, where they have ended."""
    written = []
    for table in tables:
        for row in map(table.row, table.cards):
            run = run_of(table, row, 1, home)
            if run is None or run.control or not (run.folder / "results.json").is_file():
                continue
            if not run_is_of(table, row, home):
                continue
            recipe = Path(run.recipe)
            card = folder / f"{'campaign_' if recipe.suffix else ''}{recipe.stem}.md"
            command = [sys.executable, "-m", "hf_xlsr.cli", "card", str(run.folder), "--output", str(card)]
            process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if process.returncode:
                console.print(f"[red]no card[/] {card.name}: {escape(process.stderr.strip() or 'it printed nothing')}")
            else:
                written.append(card)
    return written


def claim(output: Path) -> int:
    """Locks a campaign's folder, as long as this process or one that it hands the lock to lives.

    Raises:
        XlsrError: another one works there.
    """
    output.mkdir(parents=True, exist_ok=True)
    lock = os.open(output / "lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise XlsrError(
            f"another campaign, or a training that one left behind, works in {output}; wait for it, end it, or give "
            "another --output."
        ) from None
    return lock


def main() -> int:
    """Works, writes the page, and says what is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget-minutes", type=float, required=True)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time; they share the cores")
    parser.add_argument("--output", type=Path, default=Path("outputs/campaign"))
    options = parser.parse_args()
    console = Console(soft_wrap=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    output = options.output.resolve()
    try:
        for variable in VARIABLES:
            if not os.environ.get(variable):
                raise XlsrError(f"{variable} is not set; docs/data.md says what it names.")
            os.environ[variable] = os.path.abspath(os.environ[variable])
        os.chdir(ROOT)  # recipes name those below them from there
        lock = claim(output) if options.budget_minutes > 0 else None
        tables = read_tables(TABLES)
        kept = Figures(FIGURES)
        images = PAGE.parent / "images"
        changed = kept.forget_changed(tables)
        for row in changed:
            console.print(f"[yellow]changed[/] since it was measured: {row}")
        drop_pictures(tables, changed, images)
        by_table = plan(read_tables(TABLES, options.only), output, kept, images)
        threads = max(1, (os.cpu_count() or 1) // max(1, options.jobs))
        outcome = work_off(
            _in_order(by_table),
            minutes=options.budget_minutes,
            parallel=max(1, options.jobs),
            threads=threads,
            logs=output / "logs",
            console=console,
            held=(lock,) if lock is not None else (),
        )
        kept = Figures(FIGURES)  # hours may have gone by, and others may have added theirs
        kept.forget_changed(tables)
        kept.update(tables, output / "runs", output / "measured", partial(is_trained, output))
        kept.save()
        lines = campaign_lines(tables, kept, output / "runs", output / "measured", images, "images")
        write_page(PAGE, lines)
        cards = write_cards(tables, output / "runs", ROOT / "model_cards", console)
    except XlsrError as error:
        raise SystemExit(f"campaign: {error}") from None
    console.print(status_table(by_table, outcome))
    state = {"minutes": outcome.minutes, "states": outcome.states, "left": outcome.left, "errors": outcome.errors}
    output.mkdir(parents=True, exist_ok=True)
    (output / "campaign.json").write_text(json.dumps(state, indent=2), "utf-8")
    console.print(f"page {PAGE.relative_to(ROOT)}, {len(cards)} cards; state {options.output / 'campaign.json'}")
    return 1 if outcome.errors or outcome.interrupted else 0


def _in_order(by_table: dict[str, list[Job]]) -> list[Job]:
    """Each wanted job of all tables once, those of seed 1 first."""
    jobs = {job.name: job for of_table in by_table.values() for job in of_table if job.wanted}
    seeds = {name: re.search(r"seed-(\d+)", name) for name in jobs}
    return sorted(jobs.values(), key=lambda job: int(found[1]) if (found := seeds[job.name]) else 1)


if __name__ == "__main__":
    sys.exit(main())
