"""Metrics of several encoders as Markdown tables, one for each protocol and split."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hf_xlsr.evaluation.report import lower_is_better, metric_unit, metric_value, split_key, split_protocol
from hf_xlsr.utils.markdown_text import escape_markdown, markdown_table

WIDEST = 16  # columns; what needs more is set metric below metric
AVERAGE = re.compile(r"(?:(.+)-)?((?:mean|average)-of-\d+)")


@dataclass
class _Table:
    """The results of one protocol on one split."""

    rows: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    values: dict[tuple[str, str, str], float] = field(default_factory=dict)  # by row, metric and label

    def add(self, row: str, metric: str, label: str, value: float) -> None:
        self.rows += [row] if row not in self.rows else []
        self.metrics += [metric] if metric not in self.metrics else []
        self.values[row, metric, label] = value


def metric_tables(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, list[str]]:
    """The lines of a table for each protocol and split, encoders side by side.

    A table has a row for each language pair, or for each task where each of several was measured in one language
    (STS); means stand last. The best encoder of a row is bold, by the value as it is shown. A count on which all
    encoders agree has one column. Where more than 16 columns would be needed, metrics stand below each other.

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
    return {heading: _lines(table, list(metrics)) for heading, table in _tables(metrics).items()}


def _tables(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, _Table]:
    """Tables by heading, in the order of the keys."""
    one_row_each = _tasks(metrics)
    tables: dict[str, _Table] = {}
    for label, values in metrics.items():
        for key, value in values.items():
            name, languages, split, metric = split_key(key)
            average = AVERAGE.fullmatch(name)
            protocol = (average[1] or "") if average else split_protocol(name)[1]
            row = languages
            if (protocol, split) in one_row_each:
                language = "" if one_row_each[protocol, split] == 1 else languages
                task = average[2] if average else split_protocol(name)[0] or name
                name, row = protocol, f"{task} {language}".rstrip()
            heading = f"{name}, {split}" if name else "Other metrics"
            tables.setdefault(heading, _Table()).add(row, metric, label, value)
    for table in tables.values():
        table.rows.sort(key=lambda row: bool(AVERAGE.match(row)))
    return tables


def _tasks(metrics: Mapping[str, Mapping[str, float]]) -> dict[tuple[str, str], int]:
    """Protocols and splits whose several datasets have one row each, with the number of languages that occur."""
    found: dict[tuple[str, str], dict[str, set[str]]] = {}
    for values in metrics.values():
        for key in values:
            name, languages, split, _ = split_key(key)
            if name and not AVERAGE.fullmatch(name) and not AVERAGE.fullmatch(languages):
                dataset, protocol = split_protocol(name)
                found.setdefault((protocol, split), {}).setdefault(dataset, set()).add(languages)
    return {
        group: len(set().union(*datasets.values()))
        for group, datasets in found.items()
        if group[0] and len(datasets) > 1 and all(len(languages) == 1 for languages in datasets.values())
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
    """Whether it is a count on which all encoders agree, so that one column does for them."""
    by_row: dict[str, set[float]] = {}
    for (row, name, _), value in table.values.items():
        if name == metric:
            by_row.setdefault(row, set()).add(value)
    return all(len(values) == 1 and isinstance(next(iter(values)), int) for values in by_row.values())


def _heading(metric: str, table: _Table) -> str:
    count = all(isinstance(value, int) for (_, name, _), value in table.values.items() if name == metric)
    return escape_markdown(metric.replace("_", " ") + ("" if count else f" {metric_unit(metric)}")).rstrip()


def _cells(table: _Table, row: str, metric: str, labels: Sequence[str]) -> dict[str, str]:
    """What stands in a row for each encoder; nothing where it was not measured."""
    found = {label: table.values[row, metric, label] for label in labels if (row, metric, label) in table.values}
    shown = {label: metric_value(metric, value) for label, value in found.items()}
    if len(found) > 1 and metric_unit(metric) and not any(isinstance(value, int) for value in found.values()):
        best = min(shown.values(), key=float) if lower_is_better(metric) else max(shown.values(), key=float)
        shown = {label: f"**{text}**" if text == best else text for label, text in shown.items()}
    return {label: shown.get(label, "") for label in labels}


def _words(row: str) -> str:
    return row.replace("-", " ") if AVERAGE.match(row) else row
