"""One model before and after training, on the same data: changes with their intervals and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import RUN_BATCH_SIZE, EncodingOptions
from hf_xlsr.evaluation.containers import row_list
from hf_xlsr.evaluation.outcomes import difference_interval, holm, p_value
from hf_xlsr.evaluation.protocols.pair_similarity import sts
from hf_xlsr.evaluation.protocols.tatoeba import tatoeba
from hf_xlsr.evaluation.protocols.xsim import xsim
from hf_xlsr.evaluation.report import metric_value
from hf_xlsr.evaluation.results import Results
from hf_xlsr.evaluation.rows import Row, both_sides, by_language, by_pair
from hf_xlsr.utils.printable import printable_line

SCORED = ("sentence1", "sentence2", "score")
# Metrics by which a set of data tells whether a model is worse than before; higher is better in all of them.
GUARDED = ("spearman_all", "accuracy", "spearman", "chrf")
COUNTS = ("pairs", "dropped", "rows", "sentences")


@dataclass(frozen=True)
class Change:
    """One metric before and after training.

    Attributes:
        n: Number of pairs, queries or texts that it is measured on.
        low: Lower end of the 95 % interval of the difference, where outcomes of single examples are known; likewise
            `high`.
        p: P-value of the difference by a paired test, corrected for the number of metrics (Holm, 1979).
        teacher: The metric of the teacher, in a distillation.
    """

    before: float
    after: float
    difference: float
    n: int | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    teacher: float | None = None


def measure_rows(
    encoder: Any,
    rows: Sequence[Row],
    *,
    name: str,
    split: str = "guard",
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """What an encoder is compared by: `sts` of scored pairs, else `tatoeba` and `xsim` of translation pairs.

    Scored pairs have the columns `sentence1`, `sentence2`, `score` and `lang`; translation pairs `source`, `target`,
    `source_lang` and `target_lang`. Each language, or language pair, is measured by itself.
    """
    common: dict[str, Any] = {"split": split, "batch_size": RUN_BATCH_SIZE, **encoding}
    rows = row_list(rows, "rows")
    scored = [row for row in rows if "score" in row]
    pairs = [row for row in rows if "score" not in row]

    results = Results()
    for language, rows_of_language in by_language(scored).items():
        scores = sts(encoder, {name: rows_of_language}, language=language, **common)
        for key, record in scores.records.items():
            if record.metric == "spearman_all":
                results |= Results([record], {key: scores.outcomes[key]})

    for languages, rows_of_pair in by_pair(pairs).items():
        sides = both_sides(rows_of_pair)
        for protocol in (tatoeba, xsim):
            results |= protocol(encoder, *sides, languages=languages, name=name, **common)
    return results


def changes_between(before: Results, after: Results, teacher: Results | None = None) -> dict[str, Change]:
    """The change of each metric but the counts, by its key; both were measured on the same rows in the same order.

    Examples:
        >>> import numpy as np
        >>> from hf_xlsr.evaluation.results import measured
        >>> def accuracy(right):
        ...     return measured("tatoeba", "tatoeba", ("en", "de"), "test", {"pairs": 100}, {"accuracy": right})
        >>> numbers = np.arange(100)
        >>> changes = changes_between(accuracy(numbers < 60), accuracy(numbers < 80))
        >>> change = changes["tatoeba/en-de/test/accuracy"]
        >>> round(change.difference, 2), change.n, change.low > 0.1, change.p < 0.001
        (0.2, 100, True, True)
    """
    keys = [key for key, record in after.records.items() if record.metric not in COUNTS and key in before]
    changes = {}
    for key in keys:
        changes[key] = Change(
            before[key],
            after[key],
            after[key] - before[key],
            after.records[key].n,
            teacher=None if teacher is None else teacher.get(key),
        )

    tested = [key for key in keys if has_outcomes(key, before, after)]
    p_values = holm([p_value(before.outcomes[key], after.outcomes[key]) for key in tested])
    for key, p in zip(tested, p_values, strict=True):
        low, high = difference_interval(before.outcomes[key], after.outcomes[key])
        changes[key] = replace(changes[key], low=low, high=high, p=p)
    return changes


def has_outcomes(key: str, *results: Results) -> bool:
    """Whether a metric has outcomes of several examples in all results."""
    for measured_results in results:
        outcomes = measured_results.outcomes.get(key)
        if outcomes is None or len(outcomes.columns[0]) < 2:
            return False
    return True


def falls_of(before: Results, after: Results, limit: float) -> dict[str, Change]:
    """The guarded metrics that fell by more than `limit` even at the upper end of the interval of their change.

    A limit of 0 is any significant fall; 0.01 is one point of 100.
    """
    falls = {}
    for key, record in after.records.items():
        if record.metric not in GUARDED or not has_outcomes(key, before, after):
            continue
        difference = after[key] - before[key]
        if difference >= -limit:
            continue
        low, high = difference_interval(before.outcomes[key], after.outcomes[key])
        if high < -limit:
            falls[key] = Change(before[key], after[key], difference, record.n, low, high)
    return falls


def change_columns(changes: Mapping[str, Change]) -> list[str]:
    """The headings of `change_rows`."""
    columns = ["metric", "n", "before", "after", "change [95 %]", "p"]
    if has_teacher(changes):
        columns.append("teacher")
    return columns


def has_teacher(changes: Mapping[str, Change]) -> bool:
    """Whether a teacher was measured."""
    return any(change.teacher is not None for change in changes.values())


def change_rows(changes: Mapping[str, Change]) -> list[list[str]]:
    """A row of text for each metric, under `change_columns`."""
    with_teacher = has_teacher(changes)
    rows = []
    for key, change in changes.items():
        metric = key.rpartition("/")[2]
        row = [
            key,
            str(change.n or ""),
            metric_value(metric, change.before),
            metric_value(metric, change.after),
            shown_difference(metric, change),
            shown_p(change.p),
        ]

        if with_teacher:
            row.append("" if change.teacher is None else metric_value(metric, change.teacher))
        rows.append(row)
    return rows


def shown_difference(metric: str, change: Change) -> str:
    """A signed difference and, where it is known, its interval, as `-3.1 [-4.4, -1.9]`."""
    difference = signed(metric, change.difference)
    if change.low is None or change.high is None:
        return difference
    return f"{difference} [{signed(metric, change.low)}, {signed(metric, change.high)}]"


def signed(metric: str, value: float) -> str:
    """A value as `metric_value` writes it, with its sign."""
    text = metric_value(metric, value)
    return text if text.startswith("-") else f"+{text}"


def shown_p(p: float | None) -> str:
    """A p-value with three decimals."""
    if p is None:
        return ""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def changes_table(changes: Mapping[str, Change], title: str) -> Table:
    """A table for the console: `rich.print(changes_table(trainer.changes, "Guards"))`."""
    table = Table(title=escape(printable_line(title)))
    for name in change_columns(changes):
        table.add_column(name, overflow="fold")
    for key, *cells in change_rows(changes):
        table.add_row(*map(Text, map(printable_line, [key, *cells])))
    return table
