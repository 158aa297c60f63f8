"""The results of the speed cases over time: kept, drawn, and compared on machines of one kind.

`python -m benchmarks CASE` adds a line of JSON for each side of each job. Seconds of two days are not comparable, since
other work ran beside; the ratios to the reference of the same run are. So ratios are compared: of time and of memory.

The newest ratio is compared with the median of the earlier ones. The best one would be a lucky run on a busy machine,
after which every other looks like a loss; a single bad run moves the median as little.

usage: python -m benchmarks.history [--history FILE] [--pictures FOLDER] [--check]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HISTORY = Path("outputs/benchmarks/history.jsonl")
PICTURES = Path("outputs/benchmarks/history")
TOLERANCE = 0.10  # share by which a ratio may grow
KINDS = {"ratio": "time", "memory_ratio": "memory"}
Entry = dict[str, Any]
Results = list[tuple[str, float]]  # commits and ratios, the oldest first


@dataclass(frozen=True)
class Series:
    """What results must share to be compared: a side of a job on one kind of machine, in time or memory."""

    case: str
    machine: str
    options: str
    side: str
    kind: str


@dataclass(frozen=True)
class Comparison:
    """The newest ratio of a series, and the median of the `earlier` results."""

    series: Series
    commit: str
    newest: float
    usual: float
    earlier: int

    @property
    def change(self) -> float:
        """0.1 is a ratio that grew by a tenth."""
        return self.newest / self.usual - 1


def current_commit() -> str:
    """The commit of the working tree, with `-dirty` if files have changed; `unknown` outside of a repository."""
    root = Path(__file__).resolve().parents[1]
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def append_results(
    history: Path, case: str, job: Mapping[str, Any], machine: str, rows: Iterable[Mapping[str, Any]]
) -> None:
    """Adds the rows of a job that a kind of machine measured; each names its `side` and its `reference`."""
    stamp = {
        "case": case,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": current_commit(),
        "machine": machine,
        "options": dict(job),
    }
    history.parent.mkdir(parents=True, exist_ok=True)
    with history.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({**stamp, **row}) + "\n" for row in rows)


def read_results(history: Path) -> list[Entry]:
    """All results, the oldest first; none if there is no file."""
    if not history.is_file():
        return []
    return [json.loads(line) for line in history.read_text("utf-8").splitlines()]


def grouped(entries: Sequence[Entry]) -> dict[Series, Results]:
    """The results of each series, without those of the references, which are 1."""
    found: dict[Series, Results] = {}
    for entry in entries:
        if entry["side"] == entry["reference"]:
            continue
        options = json.dumps(entry["options"], sort_keys=True)
        for name, kind in KINDS.items():
            if name in entry:
                series = Series(entry["case"], entry["machine"], options, entry["side"], kind)
                found.setdefault(series, []).append((entry["commit"], entry[name]))
    return found


def comparisons(entries: Sequence[Entry]) -> list[Comparison]:
    """The newest result of each series that has earlier ones."""
    compared = []
    for series, results in grouped(entries).items():
        *earlier, (commit, newest) = results
        if earlier:
            usual = statistics.median(ratio for _, ratio in earlier)
            compared.append(Comparison(series, commit, newest, usual, len(earlier)))
    return compared


def regressions(entries: Sequence[Entry]) -> list[Comparison]:
    """The comparisons whose ratio grew by more than a tenth."""
    return [one for one in comparisons(entries) if one.change > TOLERANCE]


def print_comparisons(compared: Sequence[Comparison]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Newest ratio against the median of the earlier ones", show_lines=True)
    for name in ("case", "side", "options", "machine", "of"):
        table.add_column(name)
    for name in ("earlier", "median", "newest", "change"):
        table.add_column(name, justify="right")
    for one in compared:
        series = one.series
        names = (series.case, series.side, shown_options(series.options), series.machine, series.kind)
        figures = (str(one.earlier), f"{one.usual:.2f}", f"{one.newest:.2f}", f"{one.change:+.0%}")
        table.add_row(*names, *figures)
    Console(width=180).print(table)


def shown_options(options: str) -> str:
    """The options of a series for people, without empty ones."""
    return ", ".join(f"{name} {value}" for name, value in json.loads(options).items() if value not in ("", []))


def report(entries: Sequence[Entry], folder: Path) -> None:
    """Prints the comparisons, and draws each case."""
    from benchmarks.history_plots import draw

    print_comparisons(comparisons(entries))
    for case in sorted({series.case for series in grouped(entries)}):
        own_entries = [entry for entry in entries if entry["case"] == case]
        print(f"written to {draw(case, grouped(own_entries), folder)}")


def main() -> int:
    """Returns 1 with `--check` if a ratio grew by more than a tenth."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.history", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--history", type=Path, default=HISTORY)
    parser.add_argument("--pictures", type=Path, default=PICTURES, help="folder of the pictures")
    parser.add_argument("--check", action="store_true", help="only name what became slower or larger by a tenth")
    options = parser.parse_args()
    entries = read_results(options.history)
    if not entries:
        print(f"no results in {options.history}")
        return 0
    if not options.check:
        report(entries, options.pictures)
        return 0

    worse = regressions(entries)
    for one in worse:
        series = one.series
        print(
            f"{series.case}, {series.side}: {series.kind} {one.newest:.2f}, {one.change:+.0%} against the median "
            f"{one.usual:.2f} of {one.earlier} earlier results ({one.commit}; {series.machine}; "
            f"{shown_options(series.options)})"
        )
    if worse:
        print("Repeat these cases on an idle machine: the newest result counts.")
    else:
        print(f"{len(comparisons(entries))} ratios compared, none grew by more than {TOLERANCE:.0%}")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
