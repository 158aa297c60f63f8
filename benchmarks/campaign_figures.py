"""What a campaign has found: figures by table, row and seed, in a file of the repository.

The runs themselves are tens of GB in a folder of one machine. Their figures are kept here, so that the page can be
written, and the campaign goes on, where the runs are not: what is kept is not trained again, unless another row starts
from it. A row whose recipe has changed since is not kept; a row whose entry, and whose run, is removed is trained anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean
from typing import Any

from campaign_fingerprint import row_fingerprint
from campaign_jobs import measurement_of
from campaign_plan import Column, Row, Table, run_of

from hf_xlsr.evaluation.report import load_results, split_key
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import atomic_write


@dataclass(frozen=True)
class Spread:
    """One figure of a row over its seeds.

    Args:
        count: Seeds.
        mean: Of all of them.
        low: The lowest.
        high: The highest.
        by_seed: Those that are known one by one.
    """

    count: int
    mean: float
    low: float
    high: float
    by_seed: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, by_seed: Mapping[int, float]) -> Spread:
        """That of figures that are known one by one.

        Example:
            >>> Spread.of({1: 2.0, 2: 5.0}).mean
            3.5
        """
        values = by_seed.values()
        return cls(len(values), fmean(values), min(values), max(values), dict(by_seed))

    def with_more(self, other: Spread) -> Spread:
        """That of both; no seed may be in both."""
        count = self.count + other.count
        mean = (self.count * self.mean + other.count * other.mean) / count
        by_seed = {**self.by_seed, **other.by_seed}
        return Spread(count, mean, min(self.low, other.low), max(self.high, other.high), by_seed)


Values = dict[str, Spread]  # by row


@dataclass(frozen=True)
class Trained:
    """What trainings took: how many they are, their seconds, machines and threads."""

    trainings: int
    seconds: float
    hardware: tuple[str, ...] = ()
    threads: tuple[int, ...] = ()

    def with_more(self, other: Trained) -> Trained:
        """That of both."""
        hardware = tuple(sorted({*self.hardware, *other.hardware}))
        threads = tuple(sorted({*self.threads, *other.threads}))
        return Trained(self.trainings + other.trainings, self.seconds + other.seconds, hardware, threads)


@dataclass(frozen=True)
class Entry:
    """What is kept of a row: of one seed, or of several whose figures are known by mean and range alone.

    Args:
        seeds: Which.
        recipe: `row_fingerprint` when it was measured.
        units: Of peer_units, those that were measured.
        figures: By column: the seed's figure, or mean, lowest and highest of several.
        trained: Of this training; None where that is told for the table as a whole, and for an encoder as it came.
    """

    seeds: tuple[int, ...]
    recipe: str
    units: tuple[str, ...]
    figures: Mapping[str, float | tuple[float, float, float]]
    trained: Trained | None = None

    @property
    def of_run(self) -> bool:
        """Whether there was a training: an encoder as it came has its name for a recipe."""
        return re.fullmatch(r"[0-9a-f]{12}(\..+)?", self.recipe) is not None

    def spread(self, column: str) -> Spread | None:
        """A column's figure; None where it was not measured."""
        value = self.figures.get(column)
        if value is None:
            return None
        if isinstance(value, (int, float)):
            return Spread.of({self.seeds[0]: value})
        mean, low, high = value
        return Spread(len(self.seeds), mean, low, high)


class Figures:
    """The file's entries.

    Args:
        file: Written by `save`; read when it is there.

    Raises:
        XlsrError: the file is no JSON of this kind.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._entries: dict[str, dict[str, list[Entry]]] = {}
        self._before: dict[str, Trained] = {}
        self._languages: dict[str, str] = {}
        if not file.is_file():
            return
        try:
            for table, found in json.loads(file.read_text("utf-8")).items():
                self._entries[table] = {row: [_entry(one) for one in kept] for row, kept in found["rows"].items()}
                if "languages" in found:
                    self._languages[table] = str(found["languages"])
                if found.get("trained"):
                    self._before[table] = _trained(found["trained"])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise XlsrError(
                f"{file} is no file of a campaign's figures ({error!r}); take that of the repository again."
            ) from None

    def save(self) -> None:
        """Writes the file, an entry on a line."""
        tables = []
        for table, rows in self._entries.items():
            lines = []
            for row, kept in rows.items():
                one_by_one = ",\n".join(f"    {json.dumps(_plain(entry))}" for entry in kept)
                lines.append(f"   {json.dumps(row)}: [\n{one_by_one}\n   ]")
            before = self._before.get(table)
            head = f'  "trained": {json.dumps(asdict(before))},\n' if before else ""
            if table in self._languages:
                head = f'  "languages": {json.dumps(self._languages[table])},\n{head}'
            tables.append(f' {json.dumps(table)}: {{\n{head}  "rows": {{\n' + ",\n".join(lines) + "\n  }\n }")
        with atomic_write(self.file) as partial:
            partial.write_text("{\n" + ",\n".join(tables) + "\n}\n", "utf-8")

    def forget_changed(self, tables: Iterable[Table]) -> list[str]:
        """Drops entries whose table or row has gone, or whose recipe or measured languages have changed.

        Returns:
            "table, row" of each.
        """
        tables = list(tables)
        rows = {(table.name, row.name): (table, row) for table in tables for row in table.rows}
        others = {
            table.name for table in tables if self._languages.get(table.name, table.languages) != table.languages
        }
        gone: dict[str, None] = {}
        for name, kept in self._entries.items():
            for row, entries in kept.items():
                now = row_fingerprint(*rows[name, row]) if (name, row) in rows else None
                for entry in [one for one in entries if one.recipe != now or name in others]:
                    self._drop(name, row, entry)
                    gone[f"{name}, {row}"] = None
        self._entries = {
            name: rows for name, kept in self._entries.items() if (rows := {row: of for row, of in kept.items() if of})
        }
        return list(gone)

    def has(self, table: Table, row: Row, seed: int) -> bool:
        """Whether a row's seed is kept, measured in all of the table's units; hidden rows are not measured."""
        units = set() if row.hidden else set(table.units)
        return any(seed in entry.seeds and units <= set(entry.units) for entry in self._of(table, row))

    def update(
        self, tables: Iterable[Table], home: Path, measured: Path, done: Callable[[Table, Row, int], bool]
    ) -> None:
        """Takes in what runs and measurements say that are there.

        Args:
            tables: All whose rows are wanted.
            home: The campaign's folder of runs.
            measured: Folder of peers.py.
            done: Whether the run of a row's seed has ended, by the recipe as it is now.
        """
        for table in tables:
            self._languages[table.name] = table.languages
            for row in table.rows:
                found = {seed: entry_of(table, row, seed, home, measured) for seed in table.seeds(row)}
                new = [entry for seed, entry in found.items() if entry is not None and done(table, row, seed)]
                self._keep(table.name, row.name, new)

    def spreads(self, table: Table) -> dict[str, Values]:
        """Figures by column and row."""
        found: dict[str, Values] = {column.title: {} for column in table.columns}
        for row in table.rows:
            for column, values in found.items():
                for spread in (entry.spread(column) for entry in self._of(table, row)):
                    if spread is not None:
                        values[row.name] = values[row.name].with_more(spread) if row.name in values else spread
        return found

    def trained(self, table: Table) -> Trained | None:
        """What a table's trainings took; None before the first has ended."""
        each = [entry.trained for row in table.rows for entry in self._of(table, row)]
        found = self._before.get(table.name)
        for one in each:
            if one is not None:
                found = found.with_more(one) if found else one
        return found

    def _of(self, table: Table, row: Row) -> list[Entry]:
        return self._entries.get(table.name, {}).get(row.name, [])

    def _keep(self, table: str, row: str, new: Sequence[Entry]) -> None:
        if not new:
            return
        by_seed = {entry.seeds[0]: entry for entry in new}
        for entry in list(self._entries.get(table, {}).get(row, [])):
            # Each of its seeds has been measured again. A start that was trained again for another row, and not measured,
            # is no reason to lose what is kept.
            if all(seed in by_seed and set(entry.units) <= set(by_seed[seed].units) for seed in entry.seeds):
                self._drop(table, row, entry)
        kept = self._entries.setdefault(table, {}).setdefault(row, [])
        there = {seed for entry in kept for seed in entry.seeds}
        kept += [entry for seed, entry in by_seed.items() if seed not in there]
        kept.sort(key=lambda entry: entry.seeds)

    def _drop(self, table: str, row: str, entry: Entry) -> None:
        """Takes an entry out, and its share of what is told of the table's trainings as a whole."""
        told = [one for of in self._entries[table].values() for one in of if one.trained is None and one.of_run]
        self._entries[table][row].remove(entry)
        before = self._before.get(table)
        if before and entry in told:
            share = len(entry.seeds) / sum(len(one.seeds) for one in told)
            trainings = before.trainings - max(1, round(share * before.trainings))
            if trainings > 0:
                self._before[table] = replace(before, trainings=trainings, seconds=(1 - share) * before.seconds)
            else:
                del self._before[table]


def entry_of(table: Table, row: Row, seed: int, home: Path, measured: Path) -> Entry | None:
    """What a run's results and peers.py say of a row, in the table's languages; None where neither is there.

    Args:
        table: Of the row.
        row: One of its rows.
        seed: One of the row's seeds.
        home: The campaign's folder of runs.
        measured: Folder of peers.py.
    """
    run = run_of(table, row, seed, home)
    results = load_results(run.folder / "results.json") if run and (run.folder / "results.json").is_file() else None
    of_units = measurement_of(table, row, seed, home, measured).metrics()
    if results is None and not of_units:
        return None
    metrics = metrics_of_row(table, row, seed, home, measured)
    values = {column.title: value_of(column, metrics, run.folder if run else None) for column in table.columns}
    figures = {title: value for title, value in values.items() if value is not None}
    trained = None
    if results is not None:
        settings = results["settings"]
        seconds = settings.get("seconds")
        spent = seconds["training"] if isinstance(seconds, Mapping) else settings.get("cpu_seconds", 0.0)
        hardware = (str(settings["hardware"]),) if settings.get("hardware") else ()
        trained = Trained(1, float(spent), hardware, (int(settings["threads"]),) if "threads" in settings else ())
    return Entry((seed,), row_fingerprint(table, row), tuple(sorted(of_units)), figures, trained)


def metrics_of_row(table: Table, row: Row, seed: int, home: Path, measured: Path) -> dict[str, float]:
    """What a row's run said at its end and peers.py since, in the table's languages; arguments as of `entry_of`."""
    run = run_of(table, row, seed, home)
    metrics: dict[str, float] = {}
    if run is not None and (run.folder / "results.json").is_file():
        metrics |= load_results(run.folder / "results.json")["metrics"]
    for of_unit in measurement_of(table, row, seed, home, measured).metrics().values():
        metrics |= of_unit
    # An encoder as it came may have been measured in more languages.
    known = set(table.languages.replace("+", "-").split("-"))
    return {key: value for key, value in metrics.items() if set(split_key(key)[1].split("-")) <= known}


def value_of(column: Column, metrics: Mapping[str, float], run: Path | None) -> float | None:
    """A column's figure of one run; None where it is not measured."""
    kind, _, name = column.metric.partition(":")
    found: Any = None
    if kind == "log" and run is not None and (file := run / "training" / "log.json").is_file():
        found = next((entry[name] for entry in reversed(json.loads(file.read_text("utf-8"))) if name in entry), None)
    elif kind == "settings" and run is not None and (file := run / "results.json").is_file():
        found = load_results(file)["settings"]
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    elif kind not in ("log", "settings"):
        patterns = column.metric.split()
        matching = [value for key, value in metrics.items() if any(fnmatchcase(key, one) for one in patterns)]
        found = fmean(matching) if matching else None
    return None if found is None else column.scale * float(found)


def _plain(entry: Entry) -> dict[str, Any]:
    found = asdict(entry)
    found["figures"] = {
        title: round(value, 4) if isinstance(value, float) else value for title, value in entry.figures.items()
    }
    if entry.trained is None:
        del found["trained"]
    return found


def _entry(found: Mapping[str, Any]) -> Entry:
    figures = {
        title: (value[0], value[1], value[2]) if isinstance(value, list) else float(value)
        for title, value in found["figures"].items()
    }
    trained = _trained(found["trained"]) if found.get("trained") else None
    return Entry(tuple(found["seeds"]), found["recipe"], tuple(found["units"]), figures, trained)


def _trained(found: Mapping[str, Any]) -> Trained:
    return Trained(found["trainings"], found["seconds"], tuple(found["hardware"]), tuple(found["threads"]))
