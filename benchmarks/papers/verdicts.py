"""What the figures say about the claims of `tables.yaml`: one verdict for each, and for each step of a sweep between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from benchmarks.papers.figures import Spread
from benchmarks.papers.tables import SEEDS, Claim, Table

Spreads = Mapping[str, Mapping[str, Spread]]  # by column title and row name

SHOWN = "shown"
OPPOSITE = "opposite at this size"
SAME = "no difference beyond the seeds"
OPEN = "open"
SHORT = "too short to tell"
ENDS = "shown of the ends only"
LOSES_LESS = "loses less, the start is better"
SMALLEST_SHARE = 1 / 1000
"""Share of the paper's steps below which a training says nothing about the paper's claim, for it or against it."""


@dataclass(frozen=True)
class Finding:
    """A claim with its figures and its verdict; the figures are None for rows that were not run."""

    text: str
    measure: str
    better: Spread | None
    worse: Spread | None
    digits: tuple[int, int]
    trained: tuple[bool, bool]
    verdict: str


def verdict(better: Spread | None, worse: Spread | None, fixed: bool = False, margin: float = 0.0) -> str:
    """What the seeds say about the claim that one row is above another.

    `fixed`: one of the rows is not trained, and has no seeds.
    """
    few, many = sorted(side.count if side else 0 for side in (better, worse))
    if better is None or worse is None or many < SEEDS or (few < SEEDS and not fixed):
        return OPEN
    if better.low + margin > worse.high:
        return SHOWN
    return OPPOSITE if better.high + margin < worse.low else SAME


def is_too_short(steps: int | None, paper_steps: int | None) -> bool:
    """Whether a training has too few steps to speak for or against a paper; not where a paper gives no number."""
    return bool(steps and paper_steps and steps < SMALLEST_SHARE * paper_steps)


def findings(table: Table, spreads: Spreads, steps: Mapping[str, int]) -> Iterator[Finding]:
    """The claims of a table with their verdicts; a claim over a sweep is followed by its steps.

    Args:
        table: The table.
        spreads: Its figures.
        steps: Optimiser steps of each row that is trained by a recipe.
    """
    for claim in table.claims:
        main = _finding(table, claim, spreads, steps)
        parts = [_finding(table, part, spreads, steps) for part in _steps_of_sweep(table, claim, spreads)]
        if main.verdict.startswith(SHOWN) and not all(part.verdict.startswith(SHOWN) for part in parts):
            main = replace(main, verdict=main.verdict.replace(SHOWN, ENDS, 1))
        yield main
        yield from parts


def _steps_of_sweep(table: Table, claim: Claim, spreads: Spreads) -> Iterator[Claim]:
    """The claims between neighbours of a sweep, of the rows with enough seeds between the two of a claim."""
    column = spreads.get(claim.column, {})
    first = table.row(claim.worse)
    last = table.row(claim.better)
    if claim.margin or claim.against or first.x is None or last.x is None:
        return
    lowest, highest = sorted((first.x, last.x))
    rows = [row for row in table.rows if row.x is not None and lowest <= row.x <= highest]
    rows = [row for row in rows if row.name in column and column[row.name].count >= SEEDS]
    rows.sort(key=lambda row: row.x or 0.0, reverse=last.x < first.x)
    if len(rows) < 3:
        return
    for before, after in zip(rows, rows[1:], strict=False):
        text = f"- of this, {after.title} against {before.title}"
        yield claim.model_copy(update={"text": text, "better": after.name, "worse": before.name})


def _finding(table: Table, claim: Claim, spreads: Spreads, steps: Mapping[str, int]) -> Finding:
    digits = {column.title: column.digits for column in table.columns}
    against = claim.against or claim.column
    first = spreads[claim.column].get(claim.better)
    second = spreads[against].get(claim.worse)

    better = first
    worse = second
    trained = (not table.row(claim.better).encoder, not table.row(claim.worse).encoder)
    fixed = not all(trained)
    if (claim.better == claim.worse or claim.goes_on) and first and second:
        differences = {
            seed: value - second.by_seed[seed] for seed, value in first.by_seed.items() if seed in second.by_seed
        }
        better = Spread.of(differences) if differences else None
        worse = Spread.of({0: 0.0})
        fixed = True

    found = verdict(better, worse, fixed=fixed, margin=claim.margin)
    most_steps = max((steps[name] for name in (claim.better, claim.worse) if name in steps), default=None)
    is_short = not claim.ours and is_too_short(most_steps, table.paper_steps)
    return Finding(
        text=claim.text + (" (ours)" if claim.ours else ""),
        measure=" against ".join(dict.fromkeys((claim.column, against))),
        better=first,
        worse=second,
        digits=(digits[claim.column], digits[against]),
        trained=trained,
        verdict=_said(found, is_short=is_short, start=_start_of(table, claim, spreads)),
    )


@dataclass(frozen=True)
class Start:
    """The untouched encoder that both rows of a claim start from, in the claim's column."""

    figure: str = ""  # empty where it was not run
    is_better: bool = False


def _start_of(table: Table, claim: Claim, spreads: Spreads) -> Start | None:
    """The start of a claim about training; None where the claim names the start, or compares a row with itself."""
    if not table.start or claim.better == claim.worse or table.start in (claim.better, claim.worse):
        return None
    start = spreads[claim.column].get(table.start)
    better = spreads[claim.column].get(claim.better)
    if start is None or better is None:
        return Start()
    digits = next(column.digits for column in table.columns if column.title == claim.column)
    return Start(f"{start.mean:.{digits}f}", start.mean > better.high)


def _said(found: str, *, is_short: bool, start: Start | None) -> str:
    """A verdict in words. A row above another may only have lost less than it; that is not what a claim says."""
    if found not in (SHOWN, OPPOSITE):
        return found
    words = found
    not_run = ""
    if found == SHOWN and start is not None:
        if start.is_better:
            words = f"{LOSES_LESS} ({start.figure})"
        elif not start.figure:
            not_run = "; the start was not run"
    if is_short:
        directions = {SHOWN: "as claimed at this size", OPPOSITE: "the opposite at this size"}
        words = f"{SHORT} ({directions.get(words, words)})"
    return words + not_run
