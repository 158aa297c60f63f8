"""Encoders side by side: which differences are significant, as Markdown, CSV, LaTeX or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean
from typing import Any

import pandas as pd

from hf_xlsr.evaluation.outcomes import LEVEL, Outcomes, holm, p_value
from hf_xlsr.evaluation.report import lower_is_better, metric_unit, metric_value
from hf_xlsr.evaluation.results import Result, Results, metrics_of
from hf_xlsr.utils.errors import XlsrError, did_you_mean
from hf_xlsr.utils.markdown import escape_markdown, markdown_table

ENDINGS = (".md", ".csv", ".tex", ".json")
# What stands for a protocol where no metric is chosen: all of these that it has, under their directions.
HEADLINES = "error precision@1 f1 accuracy spearman_all spearman max_ap bias ndcg@10 bleu main_score".split()
DIRECTIONS = ("source_to_target_", "target_to_source_")
CHOOSING = ("train", "dev", "tune")  # splits that serve to choose; compared only where nothing was tested
LEGEND = (
    "Numbers are in per cent, correlations, F1 and average precision times 100, with 95 % intervals. Bold: significantly "
    "better than every other encoder with the same test set, p < 0.05 after Holm's correction within the table. "
    "†: another test set than the first encoder's. Means are unweighted and have no test."
)


@dataclass
class Cell:
    """One value: `best` if significantly better than all others, `unequal` if its test set is not the first encoder's."""

    record: Result
    outcomes: Outcomes | None = None
    best: bool = False
    unequal: bool = False


@dataclass
class ComparisonTable:
    """One metric of one protocol: encoders down, languages or tasks across."""

    name: str
    metric: str
    columns: list[str] = field(default_factory=list)
    rows: dict[str, dict[str, Cell]] = field(default_factory=dict)  # encoder -> column -> value
    p_values: dict[tuple[str, str, str], float] = field(default_factory=dict)  # two encoders and a column, corrected

    @property
    def shared(self) -> list[str]:
        """The columns that all encoders have. The mean column averages them."""
        return [column for column in self.columns if all(column in cells for cells in self.rows.values())]

    @property
    def shown(self) -> list[str]:
        """The columns, then the mean column if there is one."""
        count = len(self.shared)
        return [*self.columns, *([f"mean of {count}"] if count > 1 else [])]

    def cells(self, column: str) -> dict[str, Cell]:
        return {label: cells[column] for label, cells in self.rows.items() if column in cells}

    def numbers(self, label: str, column: str) -> list[float]:
        """An encoder's value in a column and the ends of its interval, as far as they are known."""
        cells = self.rows.get(label, {})
        if column in cells:
            record = cells[column].record
            return [number for number in (record.value, record.low, record.high) if number is not None]
        return [fmean(cells[one].record.value for one in self.shared)] if cells and column not in self.columns else []


def compare(results: Mapping[str, Any], metrics: Sequence[str] = ()) -> list[ComparisonTable]:
    """Tables of encoders: `results` are `Results`, or what `load_results` gave, by the name of the encoder.

    By default the metric is the headline of each protocol, in each direction that was measured. Tests need
    `Results.outcomes`, which `save_results(predictions=True)` keeps.

    Examples:
        >>> import numpy as np
        >>> from hf_xlsr.evaluation.results import measured
        >>> def encoder(right):
        ...     values = {"error": float(1 - right.mean()), "pairs": len(right)}
        ...     return measured("ntrex", "xsim", ("en", "de"), "test", values, {"error": ~right})
        >>> (table,) = compare({"a": encoder(np.arange(100) < 70), "b": encoder(np.arange(100) < 90)})
        >>> table.rows["b"]["en-de"].best, table.p_values["a", "b", "en-de"] < 0.001
        (True, True)
    """
    found = {label: metrics_of(content) for label, content in results.items()}
    labelled = [(label, record) for label, one in found.items() for record in one.records.values()]
    known = {record.metric for _, record in labelled}
    if unknown := [metric for metric in metrics if metric not in known]:
        raise XlsrError(f"No result has the metric '{unknown[0]}'; {did_you_mean(unknown[0], known)}")
    tested = {(record.dataset, record.protocol) for _, record in labelled if record.split not in CHOOSING}
    compared = [
        (label, record)
        for label, record in labelled
        if not record.is_mean
        and not record.is_average
        and (record.split not in CHOOSING or (record.dataset, record.protocol) not in tested)
    ]
    places = _places([record for _, record in compared])
    tables: dict[tuple[str, str], ComparisonTable] = {}
    for label, record in compared:
        if _chosen(record, metrics, found[label]):
            name, column = places[record.key]
            table = tables.setdefault((name, record.metric), ComparisonTable(name, record.metric))
            if column not in table.columns:
                table.columns.append(column)
            table.rows.setdefault(label, {})[column] = Cell(record, found[label].outcomes.get(record.key))
    hashes = {label: {} if isinstance(one, Results) else one["data_sha256"] for label, one in results.items()}
    for table in tables.values():
        _mark_unequal(table, hashes)
        _test(table)
    return list(tables.values())


def _places(records: Sequence[Result]) -> dict[str, tuple[str, str]]:
    """Maps the key of each record to its table and its column. A table has a dataset, a protocol and a split.

    Tasks, several datasets of a protocol in one language each (STS), share a table with a column for each.
    """
    tasks: dict[tuple[str, str], dict[str, set[str]]] = {}
    for record in records:
        datasets = tasks.setdefault((record.protocol, record.split), {})
        datasets.setdefault(record.dataset, set()).add(record.languages)
    places = {}
    for record in records:
        name, column = record.name, record.languages
        measured_in = list(tasks[record.protocol, record.split].values())
        if len(measured_in) > 1 and all(len(languages) == 1 for languages in measured_in):
            one = len(set().union(*measured_in)) == 1
            name, column = record.protocol, record.dataset if one else f"{record.dataset} {record.languages}"
        places[record.key] = f"{name}, {record.split}", column
    return places


def _chosen(record: Result, metrics: Sequence[str], results: Mapping[str, float]) -> bool:
    if isinstance(record.value, int):
        return False
    if metrics:
        return record.metric in metrics
    plain = record.metric
    for direction in DIRECTIONS:
        plain = plain.removeprefix(direction)
    front = record.key.removesuffix(record.metric)
    both = f"{front}{DIRECTIONS[0]}{plain}" in results
    headline = next((name for name in HEADLINES if f"{front}{name}" in results), None)
    # Both directions instead of their mean.
    return plain == headline and (not both or plain != record.metric)


def _mark_unequal(table: ComparisonTable, hashes: Mapping[str, Mapping[str, str]]) -> None:
    """Another test set: other data, a pool that only one has, or another number of examples.

    Hashes with the dataset or the language pair of another column do not count.
    """
    names: dict[str, set[str]] = {}
    for column in table.columns:
        record = next(iter(table.cells(column).values())).record
        names[column] = {record.dataset, f"{record.source}-{record.target}", f"{record.target}-{record.source}"}
    for column in table.columns:
        of_others = set().union(*names.values()) - names[column]
        (first, reference), *others = table.cells(column).items()
        for label, cell in others:
            one, other = hashes[first], hashes[label]
            pools = {key for key in one.keys() ^ other.keys() if one and other and key.startswith("pool/")}
            keys = {key for key in (one.keys() & other.keys()) | pools if of_others.isdisjoint(key.split("/"))}
            differ = any(one.get(key) != other.get(key) for key in keys)
            cell.unequal = differ or reference.record.n != cell.record.n


def _test(table: ComparisonTable) -> None:
    """Adds the tests of a table, corrected together, and marks the values that are significantly best."""
    raw: dict[tuple[str, str, str], float] = {}
    columns = {
        column: {label: cell for label, cell in table.cells(column).items() if not cell.unequal}
        for column in table.columns
    }
    for column, cells in columns.items():
        for (one, first), (other, second) in combinations(cells.items(), 2):
            if first.outcomes and second.outcomes:
                if first.outcomes.columns[0].shape == second.outcomes.columns[0].shape != (1,):
                    raw[one, other, column] = p_value(first.outcomes, second.outcomes)
    table.p_values = dict(zip(raw, holm(list(raw.values())), strict=True))
    sign = -1 if lower_is_better(table.metric) or table.metric.endswith("bias") else 1
    for column, cells in columns.items():
        best = max(cells, key=lambda label: sign * cells[label].record.value)
        others = [
            table.p_values.get((best, label, column), table.p_values.get((label, best, column), 1.0))
            for label in cells
            if label != best
        ]
        cells[best].best = bool(others) and max(others) < 1 - LEVEL


def render(tables: Sequence[ComparisonTable], ending: str = ".md") -> str:
    """The tables of `compare` in the format of a file that ends in `.md`, `.csv`, `.tex` (booktabs) or `.json`."""
    if ending == ".json":
        return json.dumps([_plain(table) for table in tables], indent=2, ensure_ascii=False) + "\n"
    if ending == ".csv":
        lines = [
            {"table": table.name, "metric": table.metric, "encoder": label, "column": column, **_numbers(cell)}
            for table in tables
            for label, cells in table.rows.items()
            for column, cell in cells.items()
        ]
        return str(pd.DataFrame(lines).to_csv(index=False))
    parts = [LEGEND, ""] if ending == ".md" else ["% " + LEGEND.replace("%", r"\%")]
    for table in tables:
        parts += _markdown(table) if ending == ".md" else _latex(table)
    return "\n".join(parts).rstrip() + "\n"


def _numbers(cell: Cell) -> dict[str, Any]:
    record = cell.record
    values = {"value": record.value, "low": record.low, "high": record.high, "n": record.n}
    return {**values, "best": cell.best, "unequal": cell.unequal}


def _plain(table: ComparisonTable) -> dict[str, Any]:
    rows = {label: {column: _numbers(cell) for column, cell in cells.items()} for label, cells in table.rows.items()}
    tests = [
        {"encoders": [one, other], "column": column, "p": p} for (one, other, column), p in table.p_values.items()
    ]
    return {"table": table.name, "metric": table.metric, "encoders": rows, "tests": tests}


def _grid(table: ComparisonTable, bold: str, dagger: str, dash: str) -> tuple[list[str], list[list[str]]]:
    rows = []
    for label, cells in table.rows.items():
        line = [label]
        for column in table.shown:
            cell = cells.get(column)
            numbers = [metric_value(table.metric, number) for number in table.numbers(label, column)]
            value, *ends = numbers or [""]
            shown = bold.format(value) if cell and cell.best else value
            shown += f" ({dash.join(ends)})" if ends else ""
            line.append(shown + (dagger if cell and cell.unequal else ""))
        rows.append(line)
    return ["encoder", *table.shown], rows


def terminal_table(table: ComparisonTable) -> Any:
    """A table of rich: encoders across, languages or tasks down, so that many languages fit."""
    from rich.markup import escape
    from rich.table import Table

    header, rows = _grid(table, "[bold]{}[/bold]", "†", "–")
    shown = Table("", *(escape(row[0]) for row in rows), title=escape(table_title(table)), title_justify="left")
    for column in shown.columns:
        column.overflow = "fold"
    for number, name in enumerate(header[1:], 1):
        shown.add_row(escape(name), *(row[number] for row in rows))
    return shown


def table_title(table: ComparisonTable) -> str:
    lower = " (lower is better)" if lower_is_better(table.metric) else ""
    return f"{table.name}: {table.metric.replace('_', ' ')} {metric_unit(table.metric)}".rstrip() + lower


def _markdown(table: ComparisonTable) -> list[str]:
    header, rows = _grid(table, "**{}**", "†", "–")
    lines = [[escape_markdown(row[0]), *row[1:]] for row in rows]
    return [
        f"### {escape_markdown(table_title(table))}",
        "",
        *markdown_table([*map(escape_markdown, header)], lines),
        "",
    ]


def _latex(table: ComparisonTable) -> list[str]:
    header, rows = _grid(table, r"\textbf{{{}}}", r"$^\dagger$", "--")
    lines = [" & ".join([_tex(row[0]), *row[1:]]) + r" \\" for row in rows]
    return [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(table_title(table))}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
        r"\toprule",
        " & ".join(map(_tex, header)) + r" \\",
        r"\midrule",
        *lines,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
        "",
    ]


def _tex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "×": r"$\times$"}
    special |= {mark: f"\\{mark}" for mark in "&%$#_{}"}
    return "".join(special.get(letter, letter) for letter in text)
