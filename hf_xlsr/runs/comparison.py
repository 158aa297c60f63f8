"""A trained sentence encoder next to the encoder that it started from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from hf_xlsr.data.sources import Source, open_source, open_texts
from hf_xlsr.evaluation.protocols.pair_similarity import sts
from hf_xlsr.evaluation.protocols.tatoeba import tatoeba
from hf_xlsr.evaluation.protocols.xsim import xsim
from hf_xlsr.evaluation.report import metric_value
from hf_xlsr.evaluation.results import Results
from hf_xlsr.evaluation.rows import both_sides, by_language, by_pair

Rows = list[dict[str, Any]]
SCORED = ("sentence1", "sentence2", "score")
COUNTS = ("pairs", "dropped")


def guard_rows(source: Source, languages: Sequence[str]) -> tuple[str, Rows]:
    """Name and rows of a guard set: scored pairs where its `columns` map `score`, else translation pairs."""
    if "score" in source.column_map:
        rows = open_texts(source, SCORED, languages=languages, split="dev")
    else:
        rows = open_source(source, languages=languages, split="dev")
    return source.name, list(rows)


def retrieval(encoder: Any, rows: Rows, *, name: str, split: str, batch_size: int) -> Results:
    """Accuracy of `tatoeba` and error of `xsim`, for each language pair of the rows."""
    results = Results()
    for languages, rows_of_pair in by_pair(rows).items():
        sides = both_sides(rows_of_pair)
        for protocol in (tatoeba, xsim):
            results |= protocol(
                encoder,
                *sides,
                languages=languages,
                name=name,
                split=split,
                batch_size=batch_size,
            )
    return results


def guard_metrics(encoder: Any, name: str, rows: Rows, batch_size: int) -> dict[str, float]:
    """Metrics of a guard set: `sts` for scored pairs, else `retrieval`."""
    if not rows or "score" not in rows[0]:
        return retrieval(encoder, rows, name=name, split="guard", batch_size=batch_size)

    metrics: dict[str, float] = {}
    for language, rows_of_language in by_language(rows).items():
        results = sts(
            encoder,
            {name: rows_of_language},
            language=language,
            split="guard",
            batch_size=batch_size,
        )
        metrics |= {key: value for key, value in results.items() if key.endswith("/spearman_all")}
    return metrics


def before_and_after(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Each metric of two encoders but the counts: `before`, `after` and `difference` by key."""
    comparison = {}
    for key, value in after.items():
        metric = key.rpartition("/")[2]
        if metric not in COUNTS:
            comparison[key] = {"before": before[key], "after": value, "difference": value - before[key]}
    return comparison


def comparison_rows(comparison: Mapping[str, Mapping[str, float]]) -> list[tuple[str, str, str, str]]:
    """Metric, before, after and signed difference, as text."""
    rows = []
    for key, values in comparison.items():
        metric = key.rpartition("/")[2]
        before, after, change = (metric_value(metric, value) for value in values.values())
        if not change.startswith("-"):
            change = f"+{change}"
        rows.append((key, before, after, change))
    return rows


def comparison_table(comparison: Mapping[str, Mapping[str, float]], title: str) -> Table:
    """A table for the console."""
    table = Table(title=title)
    for name in ("protocol", "languages", "split", "metric"):
        table.add_column(name, overflow="fold")
    for name in ("before", "after", "change"):
        table.add_column(name)

    for key, *numbers in comparison_rows(comparison):
        *task, metric = key.rsplit("/", 3)
        cells = [*task, metric.replace("_", " "), *numbers]
        table.add_row(*map(Text, cells))
    return table
