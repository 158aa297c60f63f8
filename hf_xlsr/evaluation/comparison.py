"""Encoders side by side: which differences are significant."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from statistics import fmean
from typing import Any

from hf_xlsr.evaluation.outcomes import LEVEL, Outcomes, holm, interval, mean_interval, p_value
from hf_xlsr.evaluation.protocol import PROTOCOLS, protocol_of
from hf_xlsr.evaluation.report import DIRECTIONS, higher_is_better, without_direction
from hf_xlsr.evaluation.results import Result, Results, is_averaged, language_key, metrics_of
from hf_xlsr.utils.errors import XlsrError, require_choice

ALL = "all"  # as a metric: every one but counts
# Headlines of results that no protocol of the command gives: of classifiers and translation models.
OTHER_HEADLINES = ("accuracy", "f1", "spearman", "pearson", "matthews", "bleu", "chrf")
CHOOSING = ("train", "dev", "tune")  # splits that serve to choose; compared only where nothing was tested


@dataclass
class Cell:
    """One value: `best` if significantly better than all others, `unequal` if its test set is not the first encoder's."""

    record: Result
    outcomes: Outcomes | None = None
    best: bool = False
    unequal: bool = False


@dataclass
class ComparisonTable:
    """One metric of one protocol: encoders down, languages or tasks across.

    Attributes:
        higher_is_better: None where neither the protocol nor the name of the metric tells; then no value is the best.
        rows: Encoder -> column -> value.
        p_values: Of two encoders and a column, corrected for the number of tests in the table.
        means: Encoder -> its mean and, where outcomes are known, the ends of its interval.
    """

    name: str
    metric: str
    higher_is_better: bool | None = True
    columns: list[str] = field(default_factory=list)
    rows: dict[str, dict[str, Cell]] = field(default_factory=lambda: defaultdict(dict))
    p_values: dict[tuple[str, str, str], float] = field(default_factory=dict)
    means: dict[str, list[float]] = field(default_factory=dict)

    @property
    def averaged(self) -> list[str]:
        """The columns of the mean: those that all encoders have, but not the language that a head was trained in."""
        columns = []
        for column in self.columns:
            cells = self.cells(column).values()
            if len(cells) == len(self.rows) and all(is_averaged(cell.record) for cell in cells):
                columns.append(column)
        return columns

    @property
    def mean_name(self) -> str | None:
        """Name of the column of means, with the languages that it leaves out; None without a mean."""
        averaged = self.averaged
        if len(averaged) < 2:
            return None
        left_out = [column for column in self.columns if column not in averaged]
        name = f"mean of {len(averaged)}"
        return f"{name} without {', '.join(left_out)}" if left_out else name

    @property
    def shown(self) -> list[str]:
        """The columns, then the mean column if there is one."""
        return [*self.columns, *filter(None, [self.mean_name])]

    @property
    def limits(self) -> set[int]:
        """The limits of rows under which values were measured."""
        limits = set()
        for cells in self.rows.values():
            limits |= {cell.record.limit for cell in cells.values() if cell.record.limit is not None}
        return limits

    def cells(self, column: str) -> dict[str, Cell]:
        """The values of a column by encoder."""
        return {label: cells[column] for label, cells in self.rows.items() if column in cells}

    def equal_cells(self, column: str) -> dict[str, Cell]:
        """The values of a column that were measured on the first encoder's test set."""
        return {label: cell for label, cell in self.cells(column).items() if not cell.unequal}

    def count(self, column: str, name: str) -> int | None:
        """The first encoder's `n` or number of `candidates` in a column; None for the mean."""
        for cell in self.cells(column).values():
            count: int | None = getattr(cell.record, name)
            return count
        return None

    def numbers(self, label: str, column: str) -> list[float]:
        """An encoder's value in a column and the ends of its interval, as far as they are known."""
        cells = self.rows.get(label, {})
        if column in cells:
            record = cells[column].record
            return [number for number in (record.value, record.low, record.high) if number is not None]
        return self.means.get(label, []) if column == self.mean_name else []

    def is_unequal(self, label: str, column: str) -> bool:
        """Whether a value, or one of those that it is the mean of, is of another test set than the first encoder's."""
        columns = self.averaged if column == self.mean_name else [column]
        cells = self.rows[label]
        return any(cells[name].unequal for name in columns if name in cells)


def compare_encoders(results: Mapping[str, Any], metrics: Sequence[str] = ()) -> list[ComparisonTable]:
    """Compares encoders in tables: `results` are `Results`, or what `load_results` gave, by the name of the encoder.

    By default the metric is the headline of each protocol, in each direction that was measured; `metrics` names others,
    or `all`. Tests need `Results.outcomes`, which `save_results(predictions=True)` keeps.

    Raises:
        XlsrError: No result has one of the metrics; or results have no headline, as those of an own function may.

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
    compared = _compared_records(records)
    choices = {record.metric for record in compared}
    for metric in metrics:
        require_choice("metric", metric, {*choices, ALL})

    addresses = _addresses(compared)
    tables: dict[tuple[str, str], ComparisonTable] = {}
    for label, encoder in encoders.items():
        for record in encoder.records.values():
            if record.key not in addresses or not _is_shown(record, metrics, encoder):
                continue
            name, column = addresses[record.key]
            new_table = ComparisonTable(name, record.metric, _higher_is_better(record))
            table = tables.setdefault((name, record.metric), new_table)
            if column not in table.columns:
                table.columns.append(column)
            table.rows[label][column] = _cell(record, encoder.outcomes.get(record.key))

    if not metrics:
        _check_headlines(compared, {name for name, _ in tables}, addresses)

    hashes: dict[str, Mapping[str, str]] = {}
    for label, content in results.items():
        hashes[label] = {} if isinstance(content, Results) else content["data_sha256"]
    for table in tables.values():
        _mark_unequal(table, hashes)
        _test_differences(table)
        _add_means(table)
    return list(tables.values())


def _cell(record: Result, outcomes: Outcomes | None) -> Cell:
    """The cell of a result, with an interval where outcomes are known."""
    if record.low is None and outcomes is not None and len(outcomes.columns[0]) > 1:
        low, high = interval(outcomes)
        record = record._replace(low=low, high=high)
    return Cell(record, outcomes)


def _compared_records(records: Sequence[Result]) -> list[Result]:
    """Values of single languages and datasets; those of a split that serves to choose only where nothing was tested."""
    tested = {record.name for record in records if record.split not in CHOOSING}
    compared = []
    for record in records:
        is_final = record.split not in CHOOSING or record.name not in tested
        is_count = isinstance(record.value, int)
        if is_final and not (is_count or record.is_mean or record.is_average):
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
    if metrics:
        return record.metric in metrics or ALL in metrics

    prefix = record.key.removesuffix(record.metric)
    headline = next((name for name in _headlines(record) if prefix + name in results), "")
    directed = [direction + headline for direction in DIRECTIONS]
    if record.metric == headline:
        return prefix + directed[0] not in results  # both directions instead of their mean
    return record.metric in directed


def _headlines(record: Result) -> tuple[str, ...]:
    protocol = protocol_of(record.protocol)
    return known_headlines() if protocol is None else protocol.headlines


def known_headlines() -> tuple[str, ...]:
    """The metrics by which encoders are compared, of all protocols and other results."""
    declared = chain.from_iterable(protocol.headlines for protocol in PROTOCOLS.values())
    return tuple(dict.fromkeys([*declared, *OTHER_HEADLINES]))


def _higher_is_better(record: Result) -> bool | None:
    """As the protocol declares it for its headlines; of other metrics, as their name says."""
    protocol = protocol_of(record.protocol)
    headlines = () if protocol is None else protocol.headlines
    if protocol is not None and without_direction(record.metric) in headlines:
        return not protocol.lower_is_better
    return higher_is_better(record.metric)


def _check_headlines(
    records: Sequence[Result], table_names: set[str], addresses: Mapping[str, tuple[str, str]]
) -> None:
    """Refuses results of which no metric is a headline: a table without them would hide them."""
    for record in records:
        table_name, _ = addresses[record.key]
        if table_name in table_names:
            continue
        same_table = [other for other in records if addresses[other.key][0] == table_name]
        metrics = ", ".join(dict.fromkeys(other.metric for other in same_table))
        raise XlsrError(
            f"No metric of '{table_name}' is a headline ({', '.join(known_headlines())}). Choose by --metric among "
            f"{metrics}, or {ALL}."
        )


def _mark_unequal(table: ComparisonTable, hashes: Mapping[str, Mapping[str, str]]) -> None:
    """Marks values on another test set: other data, a pool that only one has, or other numbers of examples or candidates.

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
        first_record = cells[first_label].record
        for label, cell in cells.items():
            same_data = _same_data(hashes[first_label], hashes[label], names_of_others)
            same_count = cell.record.n == first_record.n
            both_candidates = {cell.record.candidates, first_record.candidates} - {None}
            cell.unequal = not same_data or not same_count or len(both_candidates) > 1


def _same_data(first: Mapping[str, str], second: Mapping[str, str], ignored_names: set[str]) -> bool:
    """Whether two encoders were measured on the same data; where hashes of either are unknown, it counts as the same."""
    if not first or not second:
        return True
    for key in first.keys() | second.keys():
        is_in_both = key in first and key in second
        is_ignored = not ignored_names.isdisjoint(_names_in(key))
        if is_ignored or not (is_in_both or key.startswith("pool/")):
            continue
        if first.get(key) != second.get(key):
            return False
    return True


def _names_in(key: str) -> set[str]:
    """The parts of a hash's key, and those that are languages as results write them."""
    names = set()
    for part in key.split("/"):
        names.add(part)
        for hyphen in re.finditer("-", part):
            source = language_key(part[: hyphen.start()])
            target = language_key(part[hyphen.end() :])
            names.add(f"{source}-{target}")
    return names


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

    if table.higher_is_better is None:
        return
    sign = 1 if table.higher_is_better else -1
    for column in table.columns:
        cells = table.equal_cells(column)
        best = max(cells, key=lambda label: sign * cells[label].record.value)

        significant = 0
        for (*labels, tested_column), p in table.p_values.items():
            if tested_column == column and best in labels and p < 1 - LEVEL:
                significant += 1
        cells[best].best = significant == len(cells) - 1 > 0


def _add_means(table: ComparisonTable) -> None:
    """Adds each encoder's mean over the averaged columns, with its interval where all outcomes are known."""
    averaged = table.averaged
    if len(averaged) < 2:
        return
    for label, cells in table.rows.items():
        numbers = [fmean(cells[column].record.value for column in averaged)]
        outcomes = [cells[column].outcomes for column in averaged]
        known = [examples for examples in outcomes if examples is not None and len(examples.columns[0]) > 1]
        if len(known) == len(averaged):
            numbers += mean_interval(known)
        table.means[label] = numbers
