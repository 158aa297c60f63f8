"""Results in tables for the terminal: units, values, titles."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hf_xlsr.evaluation.results import Results

LONGEST_METRIC = 40  # characters that fit on one line of a table for the terminal
# Parts of metric names. Correlations and F1 are not shares: they are times 100, without a sign.
PLAIN_WORDS = {"bias", "threshold", "loss", "mse", "margin", "seconds"}
SCORE_WORDS = {"spearman", "pearson", "matthews", "bleu", "f1", "ap", "score"}


def metric_unit(metric: str) -> str:
    """Unit in which `metric_value` writes a metric other than a count: `%`, `×100` or none.

    Shares (accuracy, precision, recall, error rates) are in per cent. Correlations, F1 and average precision (`ap`)
    are times 100, as papers print them. Thresholds, losses, margins, biases and seconds are unchanged.

    Examples:
        >>> [metric_unit(name) for name in ("source_to_target_error", "weighted_f1", "all_spearman", "threshold")]
        ['%', '×100', '×100', '']
    """
    words = metric.lower().replace("/", "_").replace("-", "_").split("_")
    if words[-1] in PLAIN_WORDS:
        return ""
    return "×100" if SCORE_WORDS.intersection(words) or words[-2:] == ["average", "precision"] else "%"


def metric_value(metric: str, value: float) -> str:
    """A value as tables and plots write it, without its unit: a count as an integer, a plain number with four decimals.

    Examples:
        >>> metric_value("pairs", 1000), metric_value("accuracy", 0.9449), metric_value("threshold", 1.08632)
        ('1000', '94.5', '1.0863')
    """
    if isinstance(value, int):
        return str(value)
    return f"{100 * value:.1f}" if metric_unit(metric) else f"{value:.4f}"


def lower_is_better(metric: str) -> bool:
    return not {"error", "errors", "loss", "mse"}.isdisjoint(metric.lower().replace("/", "_").split("_"))


def results_table(results: Results, title: str) -> Table:
    """A table for `rich.console.Console`, one metric per line, with a rule between protocols.

    Shares are in per cent, correlations, F1 and average precision times 100. At 80 columns, which a log or a pipe has, no
    name and no number is truncated: long names continue in the next line.
    """
    table = Table(title=escape(title))
    for column in ("protocol", "languages", "split"):
        table.add_column(column, overflow="fold")
    records = results.records.values()
    # A longer metric would leave the others no room, and rich truncates what may not fold.
    longest = max((len(record.metric) for record in records), default=0)
    with_intervals = any(record.low is not None for record in records)
    table.add_column("metric", overflow="fold", no_wrap=longest <= LONGEST_METRIC and not with_intervals)
    table.add_column("value", justify="right", no_wrap=True)
    if with_intervals:
        table.add_column("95 %", justify="right", no_wrap=True)
    above = ("", "", "")
    for record in records:
        parts = (record.name, record.languages, record.split)
        if table.row_count and record.name != above[0]:
            table.add_section()
        depth = next((i for i in range(3) if parts[i] != above[i]), 3)
        unit = "" if isinstance(record.value, int) else metric_unit(record.metric)
        name, shown = record.metric.replace("_", " "), metric_value(record.metric, record.value)
        name, shown = (name, f"{shown} %") if unit == "%" else (f"{name} {unit}".rstrip(), shown)
        ends = [metric_value(record.metric, end) for end in (record.low, record.high) if end is not None]
        between = ["–".join(ends)] if with_intervals else []
        # Text, because rich would take square brackets in a name for markup.
        table.add_row(*map(Text, [*[""] * depth, *parts[depth:], name, shown, *between]))
        above = parts
    return table


def language_table(results: Results, *, title: str, protocol: str) -> Table:
    """A table for `rich.console.Console` of one protocol without its counts: a line for each language and the average."""
    lines: dict[str, dict[str, str]] = {}
    average: dict[str, str] = {}
    for record in results.records.values():
        if not isinstance(record.value, int):
            line = average if record.is_mean else lines.setdefault(record.languages, {})
            heading = f"{record.dataset} {record.split}\n{record.metric} {metric_unit(record.metric)}".rstrip()
            line[heading] = metric_value(record.metric, record.value)
    headings = list(dict.fromkeys(heading for line in lines.values() for heading in line))
    table = Table(title=escape(f"{title}: {protocol}"))
    table.add_column("language")
    for heading in headings:
        table.add_column(Text(heading), justify="right", overflow="fold")
    for language, line in lines.items():
        table.add_row(language, *(line.get(heading, "") for heading in headings))
    if average:
        table.add_section()
        table.add_row("avg", *(average.get(heading, "") for heading in headings))
    return table
