"""Results in tables for people: units, values, rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from operator import attrgetter

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hf_xlsr.evaluation.protocol import PROTOCOLS, protocols_of_key
from hf_xlsr.evaluation.results import Result, Results
from hf_xlsr.utils.printable import printable_line

# Words of metric names. Correlations and F1 are not shares: they are times 100, without a sign.
PLAIN_WORDS = {"bias", "threshold", "loss", "mse", "margin", "seconds"}
LOWER_WORDS = {"error", "errors", "loss", "mse", "bias", "xsim", "perplexity"}
HIGHER_WORDS = {"accuracy", "precision", "recall", "similarity", "map", "mrr", "ndcg", "chrf", "sts"}
DIRECTIONS = ("source_to_target_", "target_to_source_")
SCORE_WORDS = {"spearman", "pearson", "matthews", "bleu", "f1", "ap", "score"}


def metric_unit(metric: str) -> str:
    """Unit in which `metric_value` writes a metric other than a count: `%`, `×100` or none.

    Shares (accuracy, precision, recall, error rates) are in per cent. Correlations, F1 and average precision (`ap`)
    are times 100, as papers print them. Thresholds, losses, margins, biases and seconds are unchanged. Protocols of
    plug-ins declare the unit of their headline.

    Examples:
        >>> [metric_unit(name) for name in ("source_to_target_error", "weighted_f1", "all_spearman", "threshold")]
        ['%', '×100', '×100', '']
    """
    headline = without_direction(metric)
    for protocol in PROTOCOLS.plugged.values():
        if headline in protocol.headlines and protocol.unit is not None:
            return protocol.unit

    words = _words(metric)
    if words[-1] in PLAIN_WORDS:
        return ""
    is_average_precision = words[-2:] == ["average", "precision"]
    if is_average_precision or not SCORE_WORDS.isdisjoint(words):
        return "×100"
    return "%"


def names_its_unit(metric: str) -> bool:
    """Whether a word of a metric's name tells its unit, as `accuracy` and `spearman` do.

    Examples:
        >>> names_its_unit("spearman"), names_its_unit("quality")
        (True, False)
    """
    words = set(_words(metric))
    return not words.isdisjoint(PLAIN_WORDS | SCORE_WORDS | HIGHER_WORDS | LOWER_WORDS)


def metric_value(metric: str, value: float) -> str:
    """A value as tables and plots write it, without its unit: a count as an integer, a plain number with four decimals.

    Examples:
        >>> metric_value("pairs", 1000), metric_value("accuracy", 0.9449), metric_value("threshold", 1.08632)
        ('1000', '94.5', '1.0863')
    """
    if isinstance(value, int):
        return str(value)
    if metric_unit(metric):
        return f"{100 * value:.1f}"
    return f"{value:.4f}"


def lower_is_better(metric: str) -> bool:
    """Whether lower values of a metric are better; False for metrics of unknown direction."""
    return higher_is_better(metric) is False


def higher_is_better(metric: str) -> bool | None:
    """Whether higher values of a metric are better; None where that is not known.

    Protocols declare it for their headlines, in each direction of retrieval. The words of other names tell it.

    Examples:
        >>> [higher_is_better(name) for name in ("eval_accuracy", "dev/en-de/test/error", "negative_mse", "quality")]
        [True, False, True, None]
    """
    name = metric.rpartition("/")[2]
    headline = without_direction(name.removeprefix("eval_"))
    declared = {
        not protocol.lower_is_better for protocol in protocols_of_key(metric) if headline in protocol.headlines
    }
    if len(declared) == 1:
        return declared.pop()

    words = set(_words(name))
    if "negative" in words:
        return True
    if words & LOWER_WORDS:
        return False
    if words & (HIGHER_WORDS | SCORE_WORDS):
        return True
    return None


def without_direction(metric: str) -> str:
    """A metric without the direction that it was measured in.

    Examples:
        >>> without_direction("source_to_target_accuracy")
        'accuracy'
    """
    for direction in DIRECTIONS:
        metric = metric.removeprefix(direction)
    return metric


def _words(metric: str) -> list[str]:
    return re.split("[-/_@]", metric.lower())


def results_table(results: Results, title: str) -> Table:
    """A table for `rich.console.Console`, one metric per line, with a rule between protocols.

    Shares are in per cent, correlations, F1 and average precision times 100. Numbers of examples and of candidates have
    lines of their own. Long names continue in the next line.
    """
    table = Table(title=escape(printable_line(title)))
    for column in ("protocol", "languages", "split", "metric"):
        table.add_column(column, overflow="fold")
    records = results.records.values()
    number_columns = ["value"]
    if any(record.low is not None for record in records):
        number_columns.append("95 %")
    for column in number_columns:
        table.add_column(column, overflow="fold", no_wrap=True, justify="right")
    limits = sorted({record.limit for record in records if record.limit is not None})
    if limits:
        table.caption = f"--limit {', '.join(map(str, limits))}: not the whole test set"

    for _, same_protocol in groupby(records, attrgetter("name")):
        for record in _with_candidates(same_protocol):
            # Text, because rich would take square brackets in a name for markup.
            cells = map(Text, map(printable_line, _cells(record)))
            table.add_row(*islice(cells, len(table.columns)))
        table.add_section()
    return table


def _with_candidates(records: Iterable[Result]) -> Iterator[Result]:
    """The results, and after those of each language pair its number of candidates."""
    for _, same_test in groupby(records, attrgetter("languages", "split")):
        for record in same_test:
            yield record
        if record.candidates is not None:
            yield record._replace(metric="candidates", value=record.candidates, low=None, high=None)


def _cells(record: Result) -> list[str]:
    """The cells of a result: protocol, languages, split, metric, value, interval."""
    metric = record.metric.replace("_", " ")
    value = metric_value(record.metric, record.value)
    if not isinstance(record.value, int):
        unit = metric_unit(record.metric)
        if unit == "%":
            value += " %"
        elif unit:
            metric += f" {unit}"

    ends = [metric_value(record.metric, end) for end in (record.low, record.high) if end is not None]
    return [record.name, record.languages, record.split, metric, value, "–".join(ends)]
