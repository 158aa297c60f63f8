"""Results in tables for people: units, values, rows."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hf_xlsr.evaluation.results import Results

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

    Shares are in per cent, correlations, F1 and average precision times 100. Long names continue in the next line.
    """
    header = ["protocol", "languages", "split", "metric", "value"]
    if any(record.low is not None for record in results.records.values()):
        header.append("95 %")
    table = Table(title=escape(title))
    for place, column in enumerate(header):
        table.add_column(column, overflow="fold", no_wrap=place > 3, justify="right" if place > 3 else "left")
    above = ""
    for record in results.records.values():
        unit = "" if isinstance(record.value, int) else metric_unit(record.metric)
        ends = [metric_value(record.metric, end) for end in (record.low, record.high) if end is not None]
        value = metric_value(record.metric, record.value) + (" %" if unit == "%" else "")
        metric = record.metric.replace("_", " ") + (" ×100" if unit == "×100" else "")
        if above and record.name != above:
            table.add_section()
        cells = [record.name, record.languages, record.split, metric, value, "–".join(ends)]
        # Text, because rich would take square brackets in a name for markup.
        table.add_row(*map(Text, cells[: len(header)]))
        above = record.name
    return table
