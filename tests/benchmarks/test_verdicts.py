"""Verdicts of the papers' comparisons: seeds, steps of training, steps of a sweep, and the encoder before training."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.papers.figures import Spread
from benchmarks.papers.tables import Table, read_tables
from benchmarks.papers.verdicts import (
    ENDS,
    LOSES_LESS,
    OPEN,
    OPPOSITE,
    SAME,
    SHORT,
    SHOWN,
    findings,
    is_too_short,
    verdict,
)

LOW = [1.0, 1.1, 1.2]
MIDDLE = [1.3, 1.4, 1.5]
HIGH = [2.0, 2.1, 2.2]
TABLE = """
tables:
  - name: sweep
    title: A sweep
    paper: Figure 2.
    recipe: moco_en_de_open
    equal: steps
    paper_steps: 100000
    start: START
    rows:
      - {name: first, x: 1}
      - {name: second, x: 2}
      - {name: third, x: 3}
      - {name: public, encoder: e5-small}
    columns: [{title: STS, metric: "*"}]
    claims: [{text: More is better (figure 2), better: third, worse: first, column: STS, ours: OURS}]
"""


def spread(values: list[float]) -> Spread:
    return Spread.of(dict(enumerate(values, 1)))


@pytest.mark.parametrize(
    ("better", "worse", "fixed", "margin", "said"),
    [
        (HIGH, [1.0, 1.1, 1.9], False, 0.0, SHOWN),
        ([1.9, 2.1, 2.2], [1.0, 1.1, 1.9], False, 0.0, SAME),
        (LOW, MIDDLE, False, 0.0, OPPOSITE),
        (LOW, MIDDLE, False, 0.6, SHOWN),
        ([2.0, 2.1], LOW, False, 0.0, OPEN),
        (HIGH, [1.0], False, 0.0, OPEN),
        (HIGH, [1.0], True, 0.0, SHOWN),
        ([2.0], [1.0], True, 0.0, OPEN),
    ],
)
def test_seeds_decide_and_fewer_than_three_show_nothing(
    better: list[float], worse: list[float], fixed: bool, margin: float, said: str
) -> None:
    assert verdict(spread(better), spread(worse), fixed=fixed, margin=margin) == said


def said_of(
    tmp_path: Path,
    values: dict[str, list[float]],
    *,
    steps: int = 200,
    ours: bool = False,
    start: str = "",
) -> list[str]:
    """The verdicts of the claim of `TABLE` and of the steps of its sweep."""
    text = TABLE.replace("OURS", str(ours).lower()).replace("START", start or '""')
    (tmp_path / "tables.yaml").write_text(text, "utf-8")
    table: Table = read_tables(tmp_path / "tables.yaml").tables[0]
    spreads = {"STS": {name: spread(row) for name, row in values.items()}}
    return [finding.verdict for finding in findings(table, spreads, {"first": steps, "third": steps})]


@pytest.mark.parametrize(
    ("steps", "paper_steps", "expected"),
    [(99, 100_000, True), (100, 100_000, False), (1, None, False), (None, 100_000, False)],
)
def test_fewer_than_a_thousandth_of_the_paper_s_steps_are_too_short(
    steps: int | None, paper_steps: int | None, expected: bool
) -> None:
    assert is_too_short(steps, paper_steps) is expected


@pytest.mark.parametrize(("first", "third"), [(LOW, HIGH), (HIGH, LOW)])
def test_too_short_holds_for_a_claim_and_against_it(first: list[float], third: list[float], tmp_path: Path) -> None:
    (short,) = said_of(tmp_path, {"first": first, "third": third}, steps=99)
    (long,) = said_of(tmp_path, {"first": first, "third": third}, steps=100)
    (ours,) = said_of(tmp_path, {"first": first, "third": third}, steps=99, ours=True)
    assert short.startswith(SHORT)
    assert long == ours == (SHOWN if third == HIGH else OPPOSITE)


def test_neighbours_of_a_sweep_are_compared_too(tmp_path: Path) -> None:
    said = said_of(tmp_path, {"first": LOW, "second": HIGH, "third": HIGH})
    assert said == [ENDS, SHOWN, SAME]
    assert said_of(tmp_path, {"first": LOW, "second": MIDDLE, "third": HIGH}) == [SHOWN, SHOWN, SHOWN]


def test_a_neighbour_with_one_seed_is_no_step(tmp_path: Path) -> None:
    assert said_of(tmp_path, {"first": LOW, "second": [1.4], "third": HIGH}) == [SHOWN]


def test_a_row_below_its_start_only_loses_less(tmp_path: Path) -> None:
    rows = {"first": LOW, "third": HIGH}
    (less,) = said_of(tmp_path, {**rows, "public": [9.0]}, start="public")
    (more,) = said_of(tmp_path, {**rows, "public": [1.5]}, start="public")
    (unknown,) = said_of(tmp_path, rows, start="public")
    assert less == f"{LOSES_LESS} (9.0)"
    assert more == SHOWN
    assert unknown == f"{SHOWN}; the start was not run"
