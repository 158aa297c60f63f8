"""What protocols declare of their metrics: headline, direction, outcomes, candidates; one mean, one key."""

from __future__ import annotations

import io
import re
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from protocol_cases import ALL, OF_PAIRS, Prompted
from rich.console import Console

from hf_xlsr.evaluation.comparison import compare_encoders
from hf_xlsr.evaluation.comparison_files import ENDINGS, render_tables, terminal_table
from hf_xlsr.evaluation.protocol import PROTOCOLS, protocol_of
from hf_xlsr.evaluation.protocols import NAMES
from hf_xlsr.evaluation.report import higher_is_better
from hf_xlsr.evaluation.results import Results, mean_over_languages, measured, with_intervals
from hf_xlsr.utils.errors import XlsrError

TESTED = [name for name in NAMES if PROTOCOLS[name].has_outcomes]
RETRIEVAL = {"bucc", "language-bias", "mining", "search", "xsim", "xsim-pp", "xsr"}
RETRIEVAL |= {name for name in NAMES if name.startswith("tatoeba")}


class Shifted(Prompted):
    """Another encoder of the same texts."""

    @staticmethod
    def vector_of(text: str) -> np.ndarray:
        return Prompted.vector_of(text[::-1])


@pytest.mark.parametrize("name", TESTED)
def test_headlines_have_intervals_tests_and_candidates(name: str) -> None:
    first, second = (with_intervals(mean_over_languages(ALL[name](encoder({})))) for encoder in (Prompted, Shifted))
    tables = compare_encoders({"first": first, "second": second})

    assert tables
    for table in tables:
        for column in table.columns:
            assert ("first", "second", column) in table.p_values
            assert len(table.numbers("first", column)) == 3
            assert table.count(column, "n")
            assert (table.count(column, "candidates") is not None) == (name in RETRIEVAL)
    for record in first.records.values():
        assert protocol_of(record.protocol) is PROTOCOLS[name]


@pytest.mark.parametrize("name", NAMES)
def test_declared_directions_agree_with_names(name: str) -> None:
    """Trainers know metrics by their names only."""
    protocol = PROTOCOLS[name]
    assert protocol.headlines
    for headline in protocol.headlines:
        assert higher_is_better(headline) is not protocol.lower_is_better


@pytest.mark.parametrize("name", TESTED)
def test_every_metric_can_be_compared(name: str) -> None:
    results = ALL[name](Prompted({}))
    tables = compare_encoders({"a": results}, ["all"])
    values = set()
    for record in results.records.values():
        if record.split == "test" and not (isinstance(record.value, int) or record.is_mean):
            values.add(record.metric)
    assert {table.metric for table in tables} == values


def test_results_without_a_headline_are_an_error() -> None:
    results = measured("cola", "cross-lingual-test", "en", "test", {"gain": 0.5, "rows": 9})
    with pytest.raises(XlsrError, match=r"cola-cross-lingual-test.*accuracy.*gain"):
        compare_encoders({"a": results})
    (table,) = compare_encoders({"a": results}, ["gain"])
    assert table.higher_is_better is None


@pytest.mark.parametrize("name", [name for name in OF_PAIRS if name != "evaluator"])
def test_one_language_pair_has_one_key(name: str) -> None:
    expected = OF_PAIRS[name](Prompted({}))
    results = OF_PAIRS[name](Prompted({}), languages=("eng", "deu_Latn"))
    assert list(results) == list(expected)
    regional = OF_PAIRS[name](Prompted({}), languages=("en", "de-AT"))
    assert set(regional).isdisjoint(expected)


def transfer(shares: dict[str, float], count: int = 200) -> Results:
    """Results of a head trained in English, by language of the test."""
    results = Results()
    for language, share in shares.items():
        right = np.arange(count) < share * count
        results |= measured(
            "sib", "zero-shot-linear", ("en", language), "test", {"documents": count}, {"accuracy": right}
        )
    return with_intervals(mean_over_languages(results))


def test_tables_have_the_mean_of_the_key() -> None:
    first = transfer({"en": 0.95, "de": 0.8, "fr": 0.5})
    second = transfer({"en": 0.5, "de": 0.9, "fr": 0.6})
    (table,) = compare_encoders({"first": first, "second": second})

    assert table.mean_name == "mean of 2 without en-en"
    for label, results in {"first": first, "second": second}.items():
        mean = results.records["sib-zero-shot-linear/mean-of-2/test/accuracy"]
        assert table.means[label] == pytest.approx([mean.value, mean.low, mean.high])
    assert "mean of 2 without en-en" in render_tables([table])


def test_mean_has_only_columns_of_all_encoders() -> None:
    (table,) = compare_encoders(
        {"a": transfer({"de": 0.8, "fr": 0.5, "sw": 0.1}), "b": transfer({"de": 0.9, "fr": 0.6})}
    )
    assert table.mean_name == "mean of 2 without en-sw"
    assert table.means["a"][0] == pytest.approx(0.65)


def test_interval_of_a_mean_over_tasks() -> None:
    """By the definition: the percentiles of means over the same resamples of each task."""
    rng = np.random.default_rng(4)
    columns = {task: rng.random(50) for task in ("a", "b")}
    results = Results()
    for task, column in columns.items():
        results |= measured(task, "search", "en", "test", {"queries": 50}, {"mrr": column})
    average = {"mrr": fmean(column.mean() for column in columns.values())}
    results |= measured("average-of-2", "search", "en", "test", average)

    record = with_intervals(results).records["search-average-of-2/en/test/mrr"]
    rows = np.random.default_rng([0, 50]).integers(0, 50, (1000, 50))
    means = np.mean([column[rows].mean(axis=1) for column in columns.values()], axis=0)
    assert [record.low, record.high] == pytest.approx(np.percentile(means, [2.5, 97.5]))


@pytest.mark.parametrize("shares", [{"de": 1.0}, {"de": 1.0, "fr": 1.0}, {"de": 0.0, "fr": 0.0}])
def test_all_right_is_not_certain(shares: dict[str, float]) -> None:
    for record in transfer(shares, count=300).records.values():
        if record.metric == "accuracy":
            ends: tuple[Any, Any] = (record.low, record.high)
            assert max(ends) - min(ends) == pytest.approx(0.0122, abs=1e-4)


def limited(count: int) -> Results:
    results = Results()
    for language in ("de", "fr"):
        right = np.arange(count) < 0.75 * count
        pair = ("en", language)
        results |= measured("x", "xsim", pair, "test", {"pairs": count}, {"error": right}, candidates=5 * count)
    records = [record._replace(limit=count) for record in results.records.values()]
    return Results(records, results.outcomes)


@pytest.mark.parametrize("surface", [*ENDINGS, "terminal"])
def test_every_surface_has_counts_intervals_and_limit(surface: str) -> None:
    (table,) = compare_encoders({"a": limited(60)})
    if surface == "terminal":
        console = Console(width=200, record=True, file=io.StringIO())
        console.print(terminal_table(table))
        text = console.export_text()
    else:
        text = render_tables([table], surface)

    for column in ("en-de", "mean of 2"):
        _, *ends = table.numbers("a", column)
        assert len(ends) == 2
        for end in ends:
            shown = repr(end) if surface in (".csv", ".json") else f"{100 * end:.1f}"
            assert shown in text
    for count in ("60", "300"):  # n and limit, candidates
        assert re.search(rf"\b{count}\b", text)
    assert "limit" in text


def test_other_numbers_of_candidates_are_not_tested() -> None:
    def retrieval(candidates: int) -> Results:
        right = np.arange(200) < 100
        counts = {"pairs": 200}
        return measured("x", "xsim", ("de", "en"), "test", counts, {"error": right}, candidates=candidates)

    (table,) = compare_encoders({"few": retrieval(200), "many": retrieval(5000), "again": retrieval(200)})
    assert list(table.p_values) == [("few", "again", "de-en")]
    text = render_tables([table])
    assert "| many | 50.0 (42.9–57.1)† candidates 5000 |" in text
    assert "| candidates | 200 |" in text
