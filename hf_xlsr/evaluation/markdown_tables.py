"""Metrics of several encoders as Markdown tables, one for each protocol and split."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hf_xlsr.evaluation.report import Result, lower_is_better, metric_unit, metric_value, results_of
from hf_xlsr.utils.markdown_text import escape_markdown, markdown_table

WIDEST = 16  # columns; wider tables have one metric below the other
AVERAGE = re.compile(r"(?:(.+)-)?((?:mean|average)-of-\d+)")


@dataclass
class _Table:
    """The results of one protocol on one split."""

    rows: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    values: dict[tuple[str, str, str], float] = field(default_factory=dict)  # by row, metric and label


def metric_tables(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, list[str]]:
    """The lines of a table for each protocol and split, encoders side by side.

    A table has a row for each language pair, or for each task where each of several was measured in one language
    (STS); means are last. The best encoder of a row is bold, by the value as it is shown. A count that is equal for
    all encoders has one column. Where more than 16 columns would be needed, metrics are below each other.

    Args:
        metrics: Values by `protocol/languages/split/metric`, by the name of the encoder.

    Returns:
        Lines by heading, in the order of the keys.

    Example:
        >>> metrics = {"a": {"tatoeba/en-fr/test/accuracy": 0.9}, "b": {"tatoeba/en-fr/test/accuracy": 0.95}}
        >>> print("\\n".join(metric_tables(metrics)["tatoeba, test"]))
        |  | a<br>accuracy % | b<br>accuracy % |
        |---|---:|---:|
        | en-fr | 90.0 | **95.0** |
    """
    results = {label: results_of(values) for label, values in metrics.items()}
    tasks = _tasks([result for found in results.values() for result in found])
    tables: dict[str, _Table] = {}
    for label, found in results.items():
        for result in found:
            average = AVERAGE.fullmatch(result.name)
            protocol = (average[1] or "") if average else result.protocol
            name, row = result.name, result.languages
            if (protocol, result.split) in tasks:
                language = "" if tasks[protocol, result.split] == 1 else result.languages
                task = average[2] if average else result.dataset or result.name
                name, row = protocol, f"{task} {language}".rstrip()
            table = tables.setdefault(f"{name}, {result.split}" if name else "Other metrics", _Table())
            table.rows += [row] if row not in table.rows else []
            table.metrics += [result.metric] if result.metric not in table.metrics else []
            table.values[row, result.metric, label] = result.value
    for table in tables.values():
        table.rows.sort(key=lambda row: bool(AVERAGE.match(row)))
    return {heading: _lines(table, list(metrics)) for heading, table in tables.items()}


def _tasks(results: Sequence[Result]) -> dict[tuple[str, str], int]:
    """Protocols and splits with several datasets of one language each -> the number of different languages."""
    found: dict[tuple[str, str], dict[str, set[str]]] = {}
    for result in results:
        if result.protocol and not AVERAGE.fullmatch(result.name) and not AVERAGE.fullmatch(result.languages):
            group = found.setdefault((result.protocol, result.split), {})
            group.setdefault(result.dataset, set()).add(result.languages)
    return {
        group: len(set().union(*datasets.values()))
        for group, datasets in found.items()
        if len(datasets) > 1 and all(len(languages) == 1 for languages in datasets.values())
    }


def _lines(table: _Table, encoders: Sequence[str]) -> list[str]:
    shared = [metric for metric in table.metrics if len(encoders) == 1 or _is_shared(table, metric)]
    labels = [label for label in encoders if any(label == of for _, _, of in table.values)]
    columns = [(metric, label) for metric in table.metrics for label in ([""] if metric in shared else labels)]
    if len(columns) > WIDEST:
        return _below_each_other(table, labels)
    header = [""]
    for metric, label in columns:
        header.append(f"{escape_markdown(label)}<br>{_heading(metric, table)}" if label else _heading(metric, table))
    rows = []
    for row in table.rows:
        cells = {metric: _cells(table, row, metric, labels) for metric in table.metrics}
        first = {metric: next((cell for cell in cells[metric].values() if cell), "") for metric in shared}
        shown = [cells[metric][label] if label else first[metric] for metric, label in columns]
        rows.append([escape_markdown(_words(row)), *shown])
    return markdown_table(header, rows)


def _below_each_other(table: _Table, labels: Sequence[str]) -> list[str]:
    rows = []
    for metric in table.metrics:
        name = _heading(metric, table)
        for row in table.rows:
            cells = _cells(table, row, metric, labels)
            if any(cells.values()):
                rows.append([name, escape_markdown(_words(row)), *cells.values()])
                name = ""
    return markdown_table(["metric", "", *map(escape_markdown, labels)], rows, numbers_from=2)


def _is_shared(table: _Table, metric: str) -> bool:
    """Whether it is a count that is equal for all encoders."""
    by_row: dict[str, set[float]] = {}
    for (row, name, _), value in table.values.items():
        if name == metric:
            by_row.setdefault(row, set()).add(value)
    return all(len(values) == 1 and isinstance(next(iter(values)), int) for values in by_row.values())


def _heading(metric: str, table: _Table) -> str:
    count = all(isinstance(value, int) for (_, name, _), value in table.values.items() if name == metric)
    return escape_markdown(metric.replace("_", " ") + ("" if count else f" {metric_unit(metric)}")).rstrip()


def _cells(table: _Table, row: str, metric: str, labels: Sequence[str]) -> dict[str, str]:
    """The cell of each encoder in a row; empty where it was not measured."""
    found = {label: table.values[row, metric, label] for label in labels if (row, metric, label) in table.values}
    shown = {label: metric_value(metric, value) for label, value in found.items()}
    if len(found) > 1 and metric_unit(metric) and not any(isinstance(value, int) for value in found.values()):
        best = min(shown.values(), key=float) if lower_is_better(metric) else max(shown.values(), key=float)
        shown = {label: f"**{text}**" if text == best else text for label, text in shown.items()}
    return {label: shown.get(label, "") for label in labels}


def _words(row: str) -> str:
    return row.replace("-", " ") if AVERAGE.match(row) else row
