"""Figures of the comparisons by table, row and seed, kept in `docs/figures.json`.

Runs are tens of gigabytes on one machine; what they showed is kept here, and a seed that is kept is not trained again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.papers.tables import Column, Row, Table
from hf_xlsr.evaluation.results import Results, load_results
from hf_xlsr.utils.files import atomic_write


@dataclass(frozen=True)
class Spread:
    """One figure over the seeds; `by_seed` has the seeds that are known one by one."""

    count: int
    mean: float
    low: float
    high: float
    by_seed: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, by_seed: Mapping[int, float]) -> Spread:
        values = by_seed.values()
        return cls(len(values), fmean(values), min(values), max(values), dict(by_seed))

    def __add__(self, other: Spread) -> Spread:
        """The spread of the seeds of both; no seed is in both."""
        count = self.count + other.count
        mean = (self.count * self.mean + other.count * other.mean) / count
        by_seed = {**self.by_seed, **other.by_seed}
        return Spread(count, mean, min(self.low, other.low), max(self.high, other.high), by_seed)


class Figures:
    """Entries of one seed with its figures by column, or of several seeds with mean, lowest and highest."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.tables: dict[str, dict[str, Any]] = json.loads(file.read_text("utf-8")) if file.is_file() else {}

    def save(self) -> None:
        tables = []
        for name, table in self.tables.items():
            head = f'  "trained": {json.dumps(table["trained"])},\n' if "trained" in table else ""
            rows = [
                f"   {json.dumps(row)}: [\n" + ",\n".join(f"    {json.dumps(entry)}" for entry in entries) + "\n   ]"
                for row, entries in table["rows"].items()
            ]
            tables.append(f' {json.dumps(name)}: {{\n{head}  "rows": {{\n' + ",\n".join(rows) + "\n  }\n }")
        with atomic_write(self.file) as partial:
            partial.write_text("{\n" + ",\n".join(tables) + "\n}\n", "utf-8")

    def entries(self, table: Table, row: Row) -> list[dict[str, Any]]:
        return self.tables.get(table.name, {"rows": {}})["rows"].get(row.name, [])

    def has(self, table: Table, row: Row, seed: int) -> bool:
        return any(seed in entry["seeds"] for entry in self.entries(table, row))

    def add(self, table: Table, row: Row, seed: int, folder: Path) -> None:
        metrics = metrics_of(table, folder)
        found = {column.title: value_of(column, metrics, folder) for column in table.columns}
        figures = {title: round(value, 4) for title, value in found.items() if value is not None}
        entry: dict[str, Any] = {"seeds": [seed], "figures": figures}
        if (folder / "results.json").is_file():
            settings = _read(folder / "results.json")["settings"]
            cost = {"trainings": 1, "seconds": settings["seconds"]["training"]}
            entry["trained"] = cost | {"hardware": [settings["hardware"]], "threads": [settings["threads"]]}
        kept = self.tables.setdefault(table.name, {"rows": {}})["rows"].setdefault(row.name, [])
        kept.append(entry)
        kept.sort(key=lambda one: one["seeds"])

    def spreads(self, table: Table) -> dict[str, dict[str, Spread]]:
        """Spreads by column title and row name."""
        found: dict[str, dict[str, Spread]] = {column.title: {} for column in table.columns}
        for row in table.rows:
            for entry in self.entries(table, row):
                for title, value in entry["figures"].items():
                    several = isinstance(value, list)
                    one = Spread(len(entry["seeds"]), *value) if several else Spread.of({entry["seeds"][0]: value})
                    if title in found:
                        before = found[title].get(row.name)
                        found[title][row.name] = before + one if before else one
        return found

    def trained(self, table: Table) -> dict[str, Any]:
        """Cost of all trainings of a table; zero trainings before the first."""
        entries = [entry for row in table.rows for entry in self.entries(table, row)]
        costs = [one["trained"] for one in (self.tables.get(table.name, {}), *entries) if one.get("trained")]
        total: dict[str, Any] = {key: sum(cost[key] for cost in costs) for key in ("trainings", "seconds")}
        return total | {key: sorted({v for cost in costs for v in cost[key]}) for key in ("hardware", "threads")}


def metrics_of(table: Table, folder: Path) -> dict[str, float]:
    """Metrics of a run and of its evaluations in the table's languages; means over languages are left out."""
    results = Results()
    for file in (folder / "results.json", *sorted((folder / "evaluations" / table.languages).glob("*.json"))):
        results |= load_results(file)["metrics"] if file.is_file() else Results()
    known = set(table.languages.replace("+", "-").split("-"))
    chosen = (record for record in results.records.values() if not record.is_mean)
    return Results(record for record in chosen if {record.source, record.target} <= known)


def value_of(column: Column, metrics: Mapping[str, float], folder: Path) -> float | None:
    """A column's figure of one run; None where it was not measured."""
    kind, _, name = column.metric.partition(":")
    found: Any = None
    if kind == "log" and (file := folder / "training" / "log.json").is_file():
        found = next((entry[name] for entry in reversed(_read(file)) if name in entry), None)
    elif kind == "settings" and (file := folder / "results.json").is_file():
        found = _read(file)["settings"]
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    elif kind not in ("log", "settings"):
        patterns = column.metric.split()
        matching = [value for key, value in metrics.items() if any(fnmatchcase(key, one) for one in patterns)]
        found = fmean(matching) if matching else None
    return None if found is None else column.scale * float(found)


def _read(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))
