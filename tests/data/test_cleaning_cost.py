from __future__ import annotations

from typing import Any

import pytest

from hf_xlsr.data.cleaning import (
    Cleaner,
    Deduplicate,
    DropIdentical,
    LanguageFilter,
    NearDuplicates,
    Normalize,
    NumberMatch,
    RatioBounds,
)
from hf_xlsr.data.cleaning.cost import BAD_PAIRS, Removed, cleaning_cost, cost_counts, cost_table, cost_warnings
from hf_xlsr.utils.errors import XlsrError

WORDS = ["river", "mountain", "table", "window", "garden", "winter", "letter", "bridge"]
RUSSIAN = ["река", "гора", "стол", "окно", "сад", "зима", "письмо", "мост"]


def known_pairs(count: int = 400) -> list[dict[str, Any]]:
    rows = []
    for number in range(count):
        first, second = number % 8, number // 8 % 8
        source = f"The {WORDS[first]} and the {WORDS[second]} of the year {1000 + number}."
        target = f"{RUSSIAN[first].title()} и {RUSSIAN[second]} в {1000 + number} году, если верить."
        rows.append({"source": source, "target": target, "source_lang": "en", "target_lang": "ru"})
    return rows


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (RatioBounds(max_ratio=1.5, slack=0), "truncated"),
        (DropIdentical(), "untranslated"),
        (LanguageFilter(), "untranslated"),
        (LanguageFilter(), "other language"),
        (NumberMatch(min_share=1.0), "number changed"),
        (NumberMatch(min_share=1.0), "shuffled"),
        (NearDuplicates(), "boilerplate"),
    ],
)
def test_steps_catch_the_bad_pairs_that_they_are_for(step: Any, kind: str) -> None:
    (cost, _) = cleaning_cost([step], known_pairs()).values()
    assert cost[kind].share > 0.8
    assert len(cost[kind].examples) == 10


@pytest.mark.parametrize("kind", BAD_PAIRS)
def test_bad_pairs_are_no_known_pairs(kind: str) -> None:
    seen: list[Any] = []

    class Keep(Normalize):
        def apply(self, rows: Any) -> Any:
            seen.append(rows)
            return rows

    known = known_pairs()
    cleaning_cost([Keep()], known)
    bad = seen[2 * (1 + list(BAD_PAIRS).index(kind))]  # each kind alone, and in a cleaner
    assert len(bad) >= 0.8 * len(known)
    assert not [row for row in bad if row in known]


def test_steps_are_judged_alone_on_what_earlier_ones_rewrite() -> None:
    known = [{"source": "ｏｋ", "target": "ok"}, {"source": "yes", "target": "ja"}]
    cost = cleaning_cost([DropIdentical(), Normalize(form="NFKC"), DropIdentical(), DropIdentical()], known)
    good = [removed["good"].count for removed in cost.values()]
    assert list(cost) == ["drop_identical", "normalize", "drop_identical-2", "drop_identical-3", "all steps"]
    assert good == [1, 0, 1, 1, 1]


def test_all_steps_are_those_of_a_cleaner() -> None:
    known = [{"source": "A 5", "target": "B 6"}, {"source": "A 5", "target": "B 5"}]
    steps = [NumberMatch(), Deduplicate(on="source")]
    cost = cleaning_cost(steps, known)
    assert cost["numbers"]["good"].count == 1
    assert cost["deduplicate"]["good"].count == 1
    assert cost["all steps"]["good"].count == len(known) - len(list(Cleaner(steps)(known)))


def test_shuffled_targets_stay_in_their_language() -> None:
    german = [
        {**row, "target": f"deutsch {number}", "target_lang": "de"} for number, row in enumerate(known_pairs(50))
    ]
    cost = cleaning_cost([LanguageFilter(min_share=1.0)], [*known_pairs(50), *german])
    assert cost["language"]["shuffled"].count == 0


def test_equal_known_pairs_are_removed_by_steps_that_compare() -> None:
    known = [{"source": "yes", "target": "ja"}, {"source": "Yes!", "target": "Ja"}, {"source": "no", "target": "nein"}]
    assert cleaning_cost([Deduplicate()], known)["deduplicate"]["good"].count == 1


def test_cost_depends_on_the_seed_and_not_on_the_order() -> None:
    known = known_pairs()
    counts = [cost_counts(cleaning_cost([RatioBounds()], rows, seed=1)) for rows in (known, known[::-1])]
    assert counts[0] == counts[1]


def test_interval_is_exact() -> None:
    low, high = Removed(0, 300).interval()
    assert low == 0
    assert high == pytest.approx(1 - 0.025 ** (1 / 300))


def test_table_and_warnings_say_what_is_lost() -> None:
    counts = {"ratio": {"good": [5, 100], **{kind: [1, 2] for kind in BAD_PAIRS}}}
    header, _, line = cost_table(counts)
    assert header.count("|") == line.count("|")
    assert "5.00%" in line and "50.0%" in line
    (warning,) = cost_warnings(counts)
    assert "'ratio'" in warning and "5 of 100" in warning
    assert not cost_warnings({"ratio": {"good": [1, 100]}})


def test_no_known_pairs_are_an_error() -> None:
    with pytest.raises(XlsrError, match="known"):
        cleaning_cost([RatioBounds()], [])
