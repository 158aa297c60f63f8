"""Encoders side by side: which differences are significant, as Markdown, CSV, LaTeX or JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean
from typing import Any

from hf_xlsr.evaluation.outcomes import LEVEL, Outcomes, holm, p_value
from hf_xlsr.evaluation.report import lower_is_better, metric_unit, metric_value
from hf_xlsr.evaluation.results import Result, Results, metrics_of
from hf_xlsr.utils.errors import require_choice
from hf_xlsr.utils.markdown import escape_markdown, markdown_table
from hf_xlsr.utils.printable import csv_text, printable_line

ENDINGS = (".md", ".csv", ".tex", ".json")
# What stands for a protocol where no metric is chosen: all of these that it has, under their directions.
HEADLINES = (
    "error",
    "precision@1",
    "f1",
    "accuracy",
    "spearman_all",
    "spearman",
    "max_ap",
    "bias",
    "ndcg@10",
    "bleu",
    "chrf",
    "main_score",
)
DIRECTIONS = ("source_to_target_", "target_to_source_")
CHOOSING = ("train", "dev", "tune")  # splits that serve to choose; compared only where nothing was tested
LEGEND = (
    "Numbers are in per cent, correlations, F1 and average precision times 100, with 95 % intervals. Bold: significantly "
    "better than every other encoder with the same test set, p < 0.05 after Holm's correction within the table. "
    "†: another test set than the first encoder's. Means are unweighted and have no test."
)

TEX_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "×": r"$\times$",
        **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    }
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
    rows: dict[str, dict[str, Cell]] = field(default_factory=lambda: defaultdict(dict))  # encoder -> column -> value
    p_values: dict[tuple[str, str, str], float] = field(default_factory=dict)  # two encoders and a column, corrected

    @property
    def shared(self) -> list[str]:
        """The columns that all encoders have. The mean column averages them."""
        return [column for column in self.columns if len(self.cells(column)) == len(self.rows)]

    @property
    def shown(self) -> list[str]:
        """The columns, then the mean column if there is one."""
        count = len(self.shared)
        if count > 1:
            return [*self.columns, f"mean of {count}"]
        return self.columns

    def cells(self, column: str) -> dict[str, Cell]:
        """The values of a column by encoder."""
        return {label: cells[column] for label, cells in self.rows.items() if column in cells}

    def equal_cells(self, column: str) -> dict[str, Cell]:
        """The values of a column that were measured on the first encoder's test set."""
        return {label: cell for label, cell in self.cells(column).items() if not cell.unequal}

    def numbers(self, label: str, column: str) -> list[float]:
        """An encoder's value in a column and the ends of its interval, as far as they are known."""
        cells = self.rows.get(label, {})
        if column in cells:
            record = cells[column].record
            return [number for number in (record.value, record.low, record.high) if number is not None]
        if column in self.columns or not cells:
            return []
        return [fmean(cells[name].record.value for name in self.shared)]


def compare_encoders(results: Mapping[str, Any], metrics: Sequence[str] = ()) -> list[ComparisonTable]:
    """Compares encoders in tables: `results` are `Results`, or what `load_results` gave, by the name of the encoder.

    By default the metric is the headline of each protocol, in each direction that was measured. Tests need
    `Results.outcomes`, which `save_results(predictions=True)` keeps.

    Examples:
        >>> import numpy as np
        >>> from hf_xlsr.evaluation.results import measured
        >>> def encoder(right):
        ...     values = {"error": float(1 - right.mean()), "pairs": len(right)}
        ...     return measured("ntrex", "xsim", ("en", "de"), "test", values, {"error": ~right})
        >>> results = {"a": encoder(np.arange(100) < 70), "b": encoder(np.arange(100) < 90)}
        >>> (table,) = compare_encoders(results)
        >>> table.rows["b"]["en-de"].best, table.p_values["a", "b", "en-de"] < 0.001
        (True, True)
    """
    encoders = {label: metrics_of(content) for label, content in results.items()}
    records: list[Result] = []
    for encoder in encoders.values():
        records += encoder.records.values()
    for metric in metrics:
        require_choice("metric", metric, {record.metric for record in records})

    addresses = _addresses(_compared_records(records))
    tables: dict[tuple[str, str], ComparisonTable] = {}
    for label, encoder in encoders.items():
        for record in encoder.records.values():
            if record.key not in addresses or not _is_shown(record, metrics, encoder):
                continue
            name, column = addresses[record.key]
            table = tables.setdefault((name, record.metric), ComparisonTable(name, record.metric))
            if column not in table.columns:
                table.columns.append(column)
            outcomes = encoder.outcomes.get(record.key)
            table.rows[label][column] = Cell(record, outcomes)

    hashes: dict[str, Mapping[str, str]] = {}
    for label, content in results.items():
        hashes[label] = {} if isinstance(content, Results) else content["data_sha256"]
    for table in tables.values():
        _mark_unequal(table, hashes)
        _test_differences(table)
    return list(tables.values())


def _compared_records(records: Sequence[Result]) -> list[Result]:
    """Records of single languages and datasets; those of a split that serves to choose only where nothing was tested."""
    tested = {record.name for record in records if record.split not in CHOOSING}
    compared = []
    for record in records:
        is_final = record.split not in CHOOSING or record.name not in tested
        if is_final and not record.is_mean and not record.is_average:
            compared.append(record)
    return compared


def _addresses(records: Sequence[Result]) -> dict[str, tuple[str, str]]:
    """Maps the key of each record to its table and its column. A table has a dataset, a protocol and a split.

    Tasks, several datasets of a protocol in one language each (STS), share a table with a column for each.
    """
    languages_of_datasets: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for record in records:
        datasets = languages_of_datasets[record.protocol, record.split]
        datasets[record.dataset].add(record.languages)

    addresses = {}
    for record in records:
        languages = list(languages_of_datasets[record.protocol, record.split].values())
        has_tasks = len(languages) > 1 and max(map(len, languages)) == 1
        name = record.name
        column = record.languages
        if has_tasks:
            name = record.protocol
            column = record.dataset
            if len(set().union(*languages)) > 1:
                column += f" {record.languages}"
        addresses[record.key] = f"{name}, {record.split}", column
    return addresses


def _is_shown(record: Result, metrics: Sequence[str], results: Mapping[str, float]) -> bool:
    """Whether a record has one of the metrics, by default the headline of its protocol, in each direction."""
    if isinstance(record.value, int):
        return False
    if metrics:
        return record.metric in metrics

    prefix = record.key.removesuffix(record.metric)
    headline = next((name for name in HEADLINES if prefix + name in results), "")
    directed = [direction + headline for direction in DIRECTIONS]
    if record.metric == headline:
        return prefix + directed[0] not in results  # both directions instead of their mean
    return record.metric in directed


def _mark_unequal(table: ComparisonTable, hashes: Mapping[str, Mapping[str, str]]) -> None:
    """Marks values on another test set: other data, a pool that only one has, or another number of examples.

    Hashes with the dataset or the language pair of another column do not count.
    """
    names: dict[str, set[str]] = {}
    for column in table.columns:
        first_cell, *_ = table.cells(column).values()
        record = first_cell.record
        names[column] = {
            record.dataset,
            f"{record.source}-{record.target}",
            f"{record.target}-{record.source}",
        }

    for column in table.columns:
        names_of_others = set().union(*names.values()) - names[column]
        cells = table.cells(column)
        first_label, *_ = cells
        first_count = cells[first_label].record.n
        for label, cell in cells.items():
            same_data = _same_data(hashes[first_label], hashes[label], names_of_others)
            cell.unequal = not same_data or cell.record.n != first_count


def _same_data(first: Mapping[str, str], second: Mapping[str, str], ignored_names: set[str]) -> bool:
    """Whether two encoders were measured on the same data; where hashes of either are unknown, it counts as the same."""
    if not first or not second:
        return True
    for key in first.keys() | second.keys():
        is_in_both = key in first and key in second
        is_ignored = not ignored_names.isdisjoint(key.split("/"))
        if is_ignored or not (is_in_both or key.startswith("pool/")):
            continue
        if first.get(key) != second.get(key):
            return False
    return True


def _test_differences(table: ComparisonTable) -> None:
    """Adds the tests of a table, corrected together, and marks the values that are significantly best."""
    p_values: dict[tuple[str, str, str], float] = {}
    for column in table.columns:
        for (first_label, first_cell), (second_label, second_cell) in combinations(
            table.equal_cells(column).items(), 2
        ):
            first = first_cell.outcomes
            second = second_cell.outcomes
            if first and second and first.columns[0].shape == second.columns[0].shape != (1,):
                p_values[first_label, second_label, column] = p_value(first, second)
    corrected = holm(list(p_values.values()))
    table.p_values = dict(zip(p_values, corrected, strict=True))

    is_reversed = lower_is_better(table.metric) or table.metric.endswith("bias")
    sign = -1 if is_reversed else 1
    for column in table.columns:
        cells = table.equal_cells(column)
        best = max(cells, key=lambda label: sign * cells[label].record.value)
        significant = 0
        for (*labels, tested_column), p in table.p_values.items():
            if tested_column == column and best in labels and p < 1 - LEVEL:
                significant += 1
        cells[best].best = significant == len(cells) - 1 > 0


def render_tables(tables: Sequence[ComparisonTable], ending: str = ".md") -> str:
    """Comparison tables in the format of a file that ends in `.md`, `.csv`, `.tex` (booktabs) or `.json`."""
    if ending == ".json":
        return json.dumps([_plain(table) for table in tables], indent=2, ensure_ascii=False) + "\n"
    if ending == ".csv":
        return _csv(tables)

    lines = [LEGEND, ""]
    render = _markdown
    if ending == ".tex":
        lines = ["% " + LEGEND.replace("%", r"\%")]
        render = _latex
    for table in tables:
        lines += render(table)
    return "\n".join(lines).rstrip() + "\n"


def _csv(tables: Sequence[ComparisonTable]) -> str:
    rows: list[dict[str, Any]] = []
    for table in tables:
        for label, cells in table.rows.items():
            for column, cell in cells.items():
                names = {
                    "table": table.name,
                    "metric": table.metric,
                    "encoder": label,
                    "column": column,
                }
                rows.append({**names, **_plain_cell(cell)})
    return csv_text(rows)


def _plain_cell(cell: Cell) -> dict[str, Any]:
    record = cell.record
    return {
        "value": record.value,
        "low": record.low,
        "high": record.high,
        "n": record.n,
        "best": cell.best,
        "unequal": cell.unequal,
    }


def _plain(table: ComparisonTable) -> dict[str, Any]:
    rows: dict[str, dict[str, Any]] = {}
    for label, cells in table.rows.items():
        rows[label] = {column: _plain_cell(cell) for column, cell in cells.items()}

    tests = []
    for (*labels, column), p in table.p_values.items():
        tests.append({"encoders": labels, "column": column, "p": p})
    return {
        "table": table.name,
        "metric": table.metric,
        "encoders": rows,
        "tests": tests,
    }


def _text_rows(table: ComparisonTable, bold: str, dagger: str, dash: str) -> list[list[str]]:
    """The name of each encoder and its values as text, in which `bold` is a format, `dagger` and `dash` are signs."""
    rows = []
    for label, cells in table.rows.items():
        row = [label]
        for column in table.shown:
            numbers = [metric_value(table.metric, number) for number in table.numbers(label, column)]
            text, *ends = numbers or [""]

            cell = cells.get(column)
            if cell and cell.best:
                text = bold.format(text)
            if ends:
                text += f" ({dash.join(ends)})"
            if cell and cell.unequal:
                text += dagger
            row.append(text)
        rows.append(row)
    return rows


def terminal_table(table: ComparisonTable) -> Any:
    """A table of rich: encoders across, languages or tasks down, so that many languages fit."""
    from rich.markup import escape
    from rich.table import Table

    labels, *columns = zip(*_text_rows(table, "[bold]{}[/bold]", "†", "–"), strict=True)
    title = escape(printable_line(table_title(table)))
    printed = Table("", *map(escape, map(printable_line, labels)), title=title, title_justify="left")
    for column in printed.columns:
        column.overflow = "fold"
    for name, texts in zip(table.shown, columns, strict=True):
        printed.add_row(escape(printable_line(name)), *texts)
    return printed


def table_title(table: ComparisonTable) -> str:
    metric = table.metric.replace("_", " ")
    unit = metric_unit(table.metric)
    title = f"{table.name}: {metric} {unit}".rstrip()
    if lower_is_better(table.metric):
        title += " (lower is better)"
    return title


def _markdown(table: ComparisonTable) -> list[str]:
    header = ["encoder", *map(escape_markdown, table.shown)]
    rows = _text_rows(table, "**{}**", "†", "–")
    for row in rows:
        row[0] = escape_markdown(row[0])
    title = escape_markdown(table_title(table))
    return [f"### {title}", "", *markdown_table(header, rows), ""]


def _latex(table: ComparisonTable) -> list[str]:
    header = ["encoder", *map(_escape_tex, table.shown)]
    rows = _text_rows(table, r"\textbf{{{}}}", r"$^\dagger$", "--")
    for row in rows:
        row[0] = _escape_tex(row[0])

    header_line, *row_lines = [" & ".join(row) + r" \\" for row in (header, *rows)]
    title = _escape_tex(table_title(table))
    alignment = "r" * len(table.shown)
    return [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{title}}}",
        rf"\begin{{tabular}}{{l{alignment}}}",
        r"\toprule",
        header_line,
        r"\midrule",
        *row_lines,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
        "",
    ]


def _escape_tex(text: str) -> str:
    return printable_line(text).translate(TEX_ESCAPES)
