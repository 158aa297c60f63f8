"""Encoders side by side: which differences are significant, as Markdown, CSV, LaTeX or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean
from typing import Any, NamedTuple

from hf_xlsr.evaluation.outcomes import LEVEL, Outcomes, holm, p_value
from hf_xlsr.evaluation.report import lower_is_better, metric_unit, metric_value
from hf_xlsr.evaluation.results import AVERAGE, Result, metrics_of
from hf_xlsr.utils.errors import XlsrError, did_you_mean
from hf_xlsr.utils.markdown_text import escape_markdown, markdown_table

FORMATS = ("markdown", "csv", "latex", "json")
ENDINGS = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json"}
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
    "bleu",
    "main_score",
)
DIRECTIONS = ("source_to_target_", "target_to_source_")
MEAN = "mean"
LEGEND = (
    "Numbers are in per cent, correlations, F1 and average precision times 100, with 95 % intervals. Bold: significantly "
    "better than every other encoder with the same test set, p < 0.05 after Holm's correction within the table. "
    "†: another test set than the first encoder's. Means are unweighted and have no test."
)


class Cell(NamedTuple):
    """One value of a table.

    Attributes:
        record: What was measured.
        best: Whether it is significantly better than all others.
        unequal: Whether it was measured on another test set than the first encoder's.
    """

    record: Result
    best: bool = False
    unequal: bool = False


@dataclass
class ComparisonTable:
    """One metric of one protocol: encoders down, languages or tasks across.

    Attributes:
        name: Protocol, with the dataset where all columns have the same, and split.
        metric: The metric.
        columns: Languages, or datasets.
        rows: Encoder -> column -> value.
        p_values: Two encoders and a column -> corrected p-value of their difference.
    """

    name: str
    metric: str
    columns: list[str] = field(default_factory=list)
    rows: dict[str, dict[str, Cell]] = field(default_factory=dict)
    p_values: dict[tuple[str, str, str], float] = field(default_factory=dict)


def compare(results: Mapping[str, Any], metrics: Sequence[str] = ()) -> list[ComparisonTable]:
    """Tables of encoders, with paired tests where the outcomes of single examples are known.

    Args:
        results: `Results`, or what `load_results` gave, by the name of the encoder. Tests need `Results.outcomes`, which
            `save_results(predictions=True)` keeps.
        metrics: Names of metrics; by default the headline of each protocol, in each direction that was measured.

    Raises:
        XlsrError: there is nothing to compare, or a metric is unknown.

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
    known = {record.metric for one in found.values() for record in one.records.values()}
    for metric in metrics:
        if metric not in known:
            raise XlsrError(f"No result has the metric '{metric}'; {did_you_mean(metric, known)}")
    tables: dict[tuple[str, ...], ComparisonTable] = {}
    outcomes: dict[tuple[str, str, str], dict[str, Outcomes]] = {}
    hashes = {label: _hashes(content) for label, content in results.items()}
    for label, one in found.items():
        across = _datasets_across(list(one.records.values()))
        for key, record in one.records.items():
            if record.is_mean or AVERAGE.fullmatch(record.dataset) or not _chosen(record, metrics, one):
                continue
            name, column = record.name, record.languages
            if languages := across.get(record.protocol):
                name = record.protocol
                column = record.dataset if len(languages) == 1 else f"{record.dataset} {record.languages}"
            table = ComparisonTable(f"{name}, {record.split}", record.metric)
            table = tables.setdefault((name, record.split, record.metric), table)
            if column not in table.columns:
                table.columns.append(column)
            table.rows.setdefault(label, {})[column] = Cell(record)
            if key in one.outcomes:
                outcomes.setdefault((table.name, record.metric, column), {})[label] = one.outcomes[key]
    if not tables:
        raise XlsrError("The results have nothing to compare.")
    for table in tables.values():
        _test(table, outcomes, hashes)
    return list(tables.values())


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


def _datasets_across(records: Sequence[Result]) -> dict[str, set[str]]:
    """Protocols of several datasets in one language each, such as `sts`, and their languages."""
    found: dict[str, dict[str, set[str]]] = {}
    for record in records:
        if not record.is_mean and not AVERAGE.fullmatch(record.dataset):
            found.setdefault(record.protocol, {}).setdefault(record.dataset, set()).add(record.languages)
    return {
        protocol: set().union(*datasets.values())
        for protocol, datasets in found.items()
        if len(datasets) > 1 and all(len(languages) == 1 for languages in datasets.values())
    }


def _hashes(content: Any) -> Mapping[str, str]:
    return content.get("data_sha256", {}) if "data_sha256" in content else {}


def _test(
    table: ComparisonTable,
    outcomes: Mapping[tuple[str, str, str], Mapping[str, Outcomes]],
    hashes: Mapping[str, Mapping[str, str]],
) -> None:
    """Adds the tests of a table, corrected together."""
    first = next(iter(table.rows))
    for label, cells in table.rows.items():
        for column, cell in cells.items():
            reference = table.rows[first].get(column)
            names = {*hashes[label]} & {*hashes[first]}
            unequal = any(hashes[label][name] != hashes[first][name] for name in names)
            unequal = unequal or (reference is not None and reference.record.n != cell.record.n)
            cells[column] = cell._replace(unequal=unequal)
    pairs, raw = [], []
    for column in table.columns:
        known = outcomes.get((table.name, table.metric, column), {})
        for one, other in combinations(known, 2):
            same = table.rows[one][column].unequal == table.rows[other][column].unequal
            if same and known[one].columns[0].shape == known[other].columns[0].shape:
                pairs.append((one, other, column))
                raw.append(p_value(known[one], known[other]))
    table.p_values = dict(zip(pairs, holm(raw), strict=True)) if raw else {}
    sign = -1 if lower_is_better(table.metric) or table.metric.endswith("bias") else 1
    for column in table.columns:
        cells = {label: row[column] for label, row in table.rows.items() if column in row}
        best = max(cells, key=lambda label: sign * cells[label].record.value)
        others = [
            table.p_values.get((best, label, column), table.p_values.get((label, best, column), 1.0))
            for label, cell in cells.items()
            if label != best and cell.unequal == cells[best].unequal
        ]
        if others and max(others) < 1 - LEVEL:
            table.rows[best][column] = cells[best]._replace(best=True)


def render(tables: Sequence[ComparisonTable], form: str = "markdown") -> str:
    """The tables as text.

    Args:
        tables: From `compare`.
        form: One of `FORMATS`: `markdown`, `csv` (a line for each value), `latex` (booktabs), `json`.
    """
    if form == "json":
        return json.dumps([_plain(table) for table in tables], indent=2, ensure_ascii=False) + "\n"
    if form == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["table", "metric", "encoder", "column", "value", "low", "high", "n", "best", "unequal"])
        for table in tables:
            for label, cells in table.rows.items():
                for column, (record, best, unequal) in cells.items():
                    numbers = [record.value, record.low, record.high, record.n]
                    writer.writerow([table.name, table.metric, label, column, *numbers, best, unequal])
        return text.getvalue()
    parts = [LEGEND, ""] if form == "markdown" else ["% " + LEGEND.replace("%", r"\%")]
    for table in tables:
        parts += _markdown(table) if form == "markdown" else _latex(table)
    return "\n".join(parts).rstrip() + "\n"


def _plain(table: ComparisonTable) -> dict[str, Any]:
    rows = {
        label: {
            column: {"value": r.value, "low": r.low, "high": r.high, "n": r.n, "best": best, "unequal": unequal}
            for column, (r, best, unequal) in cells.items()
        }
        for label, cells in table.rows.items()
    }
    tests = [
        {"encoders": [one, other], "column": column, "p": p} for (one, other, column), p in table.p_values.items()
    ]
    return {"table": table.name, "metric": table.metric, "encoders": rows, "tests": tests}


def _grid(table: ComparisonTable, bold: str, dagger: str, dash: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table with marks of a format."""
    shared = [column for column in table.columns if all(column in cells for cells in table.rows.values())]
    with_mean = len(shared) > 1
    rows = []
    for label, cells in table.rows.items():
        line = [label]
        for column in table.columns:
            if column not in cells:
                line.append("")
                continue
            record, best, unequal = cells[column]
            shown = metric_value(table.metric, record.value)
            shown = bold.format(shown) if best else shown
            if record.low is not None and record.high is not None:
                ends = dash.join(metric_value(table.metric, end) for end in (record.low, record.high))
                shown = f"{shown} ({ends})"
            line.append(shown + (dagger if unequal else ""))
        if with_mean:
            line.append(metric_value(table.metric, fmean(cells[column].record.value for column in shared)))
        rows.append(line)
    return ["encoder", *table.columns, *([f"{MEAN} of {len(shared)}"] if with_mean else [])], rows


def _title(table: ComparisonTable) -> str:
    lower = " (lower is better)" if lower_is_better(table.metric) else ""
    return f"{table.name}: {table.metric.replace('_', ' ')} {metric_unit(table.metric)}".rstrip() + lower


def _markdown(table: ComparisonTable) -> list[str]:
    header, rows = _grid(table, "**{}**", "†", "–")
    lines = [[escape_markdown(row[0]), *row[1:]] for row in rows]
    return [f"### {escape_markdown(_title(table))}", "", *markdown_table([*map(escape_markdown, header)], lines), ""]


def _latex(table: ComparisonTable) -> list[str]:
    header, rows = _grid(table, r"\textbf{{{}}}", r"$^\dagger$", "--")
    lines = [" & ".join([_tex(row[0]), *row[1:]]) + r" \\" for row in rows]
    return [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(_title(table))}}}",
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
    """Text with the special characters of LaTeX escaped.

    Examples:
        >>> _tex("100 % of a_b")
        '100 \\\\% of a\\\\_b'
    """
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "×": r"$\times$"}
    special |= {mark: f"\\{mark}" for mark in "&%$#_{}"}
    return "".join(special.get(letter, letter) for letter in text)
