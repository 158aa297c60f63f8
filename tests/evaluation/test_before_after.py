"""Changes from before to after training: their intervals, tests and tables."""

from __future__ import annotations

from io import StringIO
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import binomtest, spearmanr

from hf_xlsr.evaluation.before_after import (
    Change,
    change_columns,
    change_rows,
    changes_between,
    changes_table,
    falls_of,
    measure_rows,
)
from hf_xlsr.evaluation.outcomes import Outcomes
from hf_xlsr.evaluation.results import Results, measured

KEY = "web-tatoeba/en-de/guard/accuracy"


def accuracy(right: np.ndarray, name: str = "web") -> Results:
    return measured(name, "tatoeba", ("en", "de"), "guard", {"pairs": len(right)}, {"accuracy": right})


def correlation(cosines: np.ndarray, scores: np.ndarray) -> Results:
    outcomes = {"spearman_all": Outcomes("spearman", (cosines, scores))}
    return measured("stsb", "sts", "en", "guard", {"pairs": len(scores)}, outcomes)


def test_a_change_by_hand() -> None:
    numbers = np.arange(100)
    change = changes_between(accuracy(numbers < 60), accuracy(numbers < 80))[KEY]

    assert (change.before, change.after, change.n) == (0.6, 0.8, 100)
    assert change.difference == pytest.approx(0.2)
    assert change.p == binomtest(20, 20).pvalue
    # 20 of 100 rows are right only after training: a binomial share, 0.2 with a standard error of 0.04.
    assert change.low == pytest.approx(0.2 - 1.96 * 0.04, abs=0.02)
    assert change.high == pytest.approx(0.2 + 1.96 * 0.04, abs=0.02)


def test_interval_of_a_correlation_equals_a_naive_bootstrap() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=60)
    first = scores + rng.normal(size=60)
    second = scores + 2 * rng.normal(size=60)

    change = changes_between(correlation(first, scores), correlation(second, scores))["stsb-sts/en/guard/spearman_all"]

    differences = []
    for _ in range(800):
        rows = rng.integers(0, 60, 60)
        before = spearmanr(first[rows], scores[rows]).statistic
        differences.append(spearmanr(second[rows], scores[rows]).statistic - before)
    low, high = np.quantile(differences, [0.025, 0.975])
    assert change.low == pytest.approx(low, abs=0.03)
    assert change.high == pytest.approx(high, abs=0.03)


def test_p_values_are_corrected_for_the_number_of_metrics() -> None:
    numbers = np.arange(100)
    alone = changes_between(accuracy(numbers < 60), accuracy(numbers < 68))[KEY]
    before = accuracy(numbers < 60) | accuracy(numbers < 60, "news")
    after = accuracy(numbers < 68) | accuracy(numbers < 90, "news")

    together = changes_between(before, after)[KEY]

    assert together.p == alone.p  # the largest of two
    assert changes_between(before, after)["news-tatoeba/en-de/guard/accuracy"].p == 2 * binomtest(30, 30).pvalue


def test_one_example_has_neither_interval_nor_test() -> None:
    change = changes_between(accuracy(np.array([False])), accuracy(np.array([True])))[KEY]
    assert change == Change(0.0, 1.0, 1.0, 1)


def test_counts_do_not_change() -> None:
    numbers = np.arange(10)
    assert list(changes_between(accuracy(numbers < 5), accuracy(numbers < 6))) == [KEY]


@pytest.mark.parametrize(
    ("after", "limit", "falls"),
    [
        (50, 0.0, True),
        (50, 0.2, False),  # within the limit
        (78, 0.0, False),  # within the interval
        (40, 0.2, True),
        (58, 0.2, False),  # beyond the limit, but not beyond its interval
        (90, 0.0, False),
    ],
)
def test_a_fall_is_beyond_the_limit_and_the_interval(after: int, limit: float, falls: bool) -> None:
    numbers = np.arange(100)
    rng = np.random.default_rng(1)
    before = accuracy(numbers < 80)
    measured_after = accuracy(rng.permutation(numbers) < after)
    assert (KEY in falls_of(before, measured_after, limit)) is falls


def test_a_fall_is_looked_for_in_what_is_guarded() -> None:
    numbers = np.arange(100)
    values = {"pairs": 100}
    before = measured("web", "xsim", ("en", "de"), "guard", values, {"error": numbers < 90})
    after = measured("web", "xsim", ("en", "de"), "guard", values, {"error": numbers < 10})
    assert falls_of(before, after, 0.0) == {}  # a lower error is better


def test_a_teacher_is_a_column() -> None:
    numbers = np.arange(100)
    before = accuracy(numbers < 60)
    after = accuracy(numbers < 80)
    changes = changes_between(before, after, accuracy(numbers < 95))

    (row,) = change_rows(changes)

    assert change_columns(changes)[-1] == "teacher"
    assert row[-1] == "95.0"
    assert "teacher" not in change_columns(changes_between(before, after))


def test_the_table_shows_names_as_they_are() -> None:
    change = Change(0.812, 0.781, -0.031, 1379, -0.044, -0.019, 0.0004)
    output = StringIO()
    console = Console(file=output, width=120)

    console.print(changes_table({"[b]sts-sts/en/guard/spearman_all": change}, "before and after"))

    for text in ("[b]sts-sts/en/guard/spearman_all", "1379", "81.2", "78.1", "-3.1 [-4.4, -1.9]", "< 0.001"):
        assert text in output.getvalue()


class Letters:
    """Encodes a text by its numbers of two letters."""

    def encode(self, texts: list[str], **_: Any) -> np.ndarray:
        return np.array([[text.count("a"), text.count("b")] for text in texts], np.float32)


def test_what_is_measured_of_rows() -> None:
    pairs = [
        {"source": "a", "target": "aa", "source_lang": "en", "target_lang": "de"},
        {"source": "b", "target": "bb", "source_lang": "en", "target_lang": "de"},
        {"source": "ab", "target": "abab", "source_lang": "en", "target_lang": "fr"},
    ]
    scored = [
        {"sentence1": "a", "sentence2": "a", "score": 5, "lang": "en"},
        {"sentence1": "a", "sentence2": "b", "score": 0, "lang": "en"},
        {"sentence1": "a", "sentence2": "b", "score": 0, "lang": "fr"},
        {"sentence1": "b", "sentence2": "ab", "score": 2, "lang": "fr"},
    ]

    of_pairs = measure_rows(Letters(), pairs, name="web")
    of_scores = measure_rows(Letters(), scored, name="sts")

    assert {record.languages for record in of_pairs.records.values()} == {"en-de", "en-fr"}
    assert of_pairs["web-tatoeba/en-de/guard/accuracy"] == 1.0
    assert of_pairs["web-xsim/en-fr/guard/error"] == 0.0
    assert dict(of_scores) == {"sts/en/guard/spearman_all": 1.0, "sts/fr/guard/spearman_all": 1.0}
