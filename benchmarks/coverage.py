"""How often the 95 % intervals of mining contain the precision, by simulation of what they are estimated from.

`labels` draws 3,000 scored pairs that are right by one of five true curves, writes their report page, labels its first
pairs, and asks for the precision of the best 30, 50, 70 and 90 % of the pairs, and at the threshold that is chosen for a
precision of 90 %. `known` draws two sets of vectors of which a share have a partner, mines them with hidden known pairs,
and asks for the precision of what is mined, at the same points and at the threshold with the best F1.

usage: python -m benchmarks coverage [--kind known] [--draws 300] [--seed 1]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from scipy.special import expit

from benchmarks.harness import Job, Step
from hf_xlsr.mining.hidden_pairs import HiddenPairs, hidden_curve, mine_hidden
from hf_xlsr.mining.labels import RowLabels, band_floors, bands_of, label_curve
from hf_xlsr.mining.outputs import sampled_pairs
from hf_xlsr.mining.search.extraction import extract_pairs
from hf_xlsr.mining.search.neighbours import neighbours_both_ways
from hf_xlsr.mining.thresholds import PrecisionCurve
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.markdown import markdown_table

PAIRS = 3000
LABELS = (20, 40, 100, 200)
KEPT = (0.3, 0.5, 0.7, 0.9)  # shares of the pairs, best first
CHOSEN = "chosen"
WANTED = 0.9
Curve = Callable[[np.ndarray], np.ndarray]
# Share of pairs that are better -> chance to be right.
CURVES: dict[str, Curve] = {
    "logistic": lambda rank: expit(12 * (0.6 - rank)),
    "plateau at 92 %": lambda rank: 0.92 * expit(15 * (0.75 - rank)),
    "straight from 100 to 40 %": lambda rank: 1 - 0.6 * rank,
    "step from 97 to 15 %": lambda rank: np.where(rank < 0.6, 0.97, 0.15),
    "mostly right, 99 to 85 %": lambda rank: 0.99 - 0.14 * rank**3,
}
# Share of sentences with a partner -> noise of the vectors, hidden pairs.
WORLDS = {
    "10 % have a partner": (0.1, 0.5, 300),
    "30 % have a partner": (0.3, 0.6, 1200),
    "50 % have a partner": (0.5, 0.7, 600),
    "70 % have a partner": (0.7, 0.6, 300),
    "90 % have a partner": (0.9, 0.5, 600),
}
SENTENCES = 600  # of each side
WIDTH = 20
Covered = dict[str, list[tuple[bool, float, float]]]
"""Point -> for each draw, whether the interval has the truth, its width, and the error of the estimate."""


def add_points(covered: Covered, curve: PrecisionCurve, scores: np.ndarray, right: np.ndarray, choose: Any) -> None:
    """Compares a curve with the truth at the points of `KEPT`, and at a chosen threshold."""
    ordered = np.sort(scores)[::-1]
    thresholds: dict[str, float] = {f"{share:.0%}": ordered[int(share * len(scores)) - 1] for share in KEPT}
    with suppress(XlsrError):
        thresholds[CHOSEN] = float(curve.threshold[choose(curve)])

    for name, threshold in thresholds.items():
        try:
            # The truth is that of the pairs at the point of the curve that answers for the threshold.
            _, figures = curve.chosen(threshold)
        except XlsrError:
            continue
        truth = right[scores >= figures["threshold"]].mean()
        is_covered = figures["low"] <= truth <= figures["high"]
        covered.setdefault(name, []).append(
            (is_covered, figures["high"] - figures["low"], figures["precision"] - truth)
        )


def label_draws(curve: Curve, num_labels: int, draws: int, seed: int) -> Covered:
    """Coverage of the intervals of labels, where the chance to be right follows a curve."""
    covered: Covered = {}
    ranks = (np.arange(PAIRS) + 0.5) / PAIRS
    for draw in range(draws):
        rng = np.random.default_rng([seed, num_labels, draw])
        scores = np.sort(rng.normal(1.1, 0.05, PAIRS))[::-1]
        right = rng.random(PAIRS) < curve(ranks)
        is_labelled = np.zeros(PAIRS, dtype=bool)
        pairs, order = sampled_pairs(
            ({"score": score} for score in scores), bands_of(scores, band_floors(scores)), rng
        )
        shown = np.searchsorted(-scores, [-pairs[place]["score"] for place in order[:num_labels]])
        is_labelled[shown] = True

        verdicts = RowLabels(scores, is_labelled & right, is_labelled & ~right)
        add_points(covered, label_curve(verdicts), scores, right, lambda curve: curve.choose(WANTED))
    return covered


def known_draws(share: float, noise: float, known: int, draws: int, seed: int) -> Covered:
    """Coverage of the intervals of hidden pairs, where a share of the sentences have a partner."""
    covered: Covered = {}
    texts = [str(number) for number in range(known - known // 4)]
    hidden = HiddenPairs(texts, texts, known // 2)
    partners = int(share * SENTENCES)
    alone = known // 4
    for draw in range(draws):
        rng = np.random.default_rng([seed, partners, draw])
        # Texts: partners, then sentences without. Hidden: complete pairs, then sentences without.
        true = rng.normal(size=(partners, WIDTH))
        complete = rng.normal(size=(known // 2, WIDTH))
        sides = []
        for _ in range(2):
            meanings = [
                true,
                rng.normal(size=(SENTENCES - partners, WIDTH)),
                complete,
                rng.normal(size=(alone, WIDTH)),
            ]
            vectors = np.concatenate(meanings)
            vectors = vectors + 0.7 + noise * rng.normal(size=vectors.shape)
            sides.append((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32))

        rows = np.arange(len(sides[0])) - SENTENCES
        neighbours = neighbours_both_ways(*sides, 4)
        kept = extract_pairs(neighbours, without=(rows >= 0, rows >= 0))
        mined = mine_hidden(neighbours, (rows, rows))
        numbers = set(range(known // 2 + alone))
        sizes = (SENTENCES, SENTENCES)
        curve = hidden_curve(hidden, mined, sizes, sizes, (numbers, numbers), kept.score, seed=draw)
        right = (kept.source == kept.target) & (kept.source < partners)
        add_points(covered, curve, kept.score, right, lambda curve: curve.choose())
    return covered


DEFAULTS: Job = {"kind": "labels", "draws": 300, "seed": 1}
QUICK: Job = {"draws": 3}
MEMORY = WARM_UP = False
ROUNDS = 1


def sides(job: Job) -> list[str]:
    """The first cells of each row of the table."""
    if job["kind"] == "known":
        return [f"{name} | {known}" for name, (_, _, known) in WORLDS.items()]
    return [f"{name} | {num_labels}" for name in CURVES for num_labels in LABELS]


def prepare(job: Job, sides: list[str]) -> Step:
    def step(side: str, warm_up: bool) -> dict[str, Any]:
        name, number = side.split(" | ")
        if job["kind"] == "known":
            covered = known_draws(*WORLDS[name], job["draws"], job["seed"])
        else:
            covered = label_draws(CURVES[name], int(number), job["draws"], job["seed"])
        return figures_of(covered)

    return step


def figures_of(covered: Covered) -> dict[str, Any]:
    """The coverage of each point with the mean width and error of its intervals, and the coverage of all but `CHOSEN`."""
    figures: dict[str, Any] = {"points": {}}
    fixed: list[bool] = []
    for point, intervals in covered.items():
        figures["points"][point] = np.array(intervals, dtype=float).mean(axis=0).tolist()
        if point != CHOSEN:
            fixed += [is_covered for is_covered, _, _ in intervals]
    if fixed:
        figures["fixed"] = float(np.mean(fixed))
    return figures


def page(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Coverage at each point, with the mean width of the intervals and the mean error in percent points."""
    points = [*(f"{share:.0%}" for share in KEPT), CHOSEN]
    lines = []
    for row in rows:
        cells = []
        for point in points:
            cells.append("-")
            if point in row["points"]:
                share, width, error = row["points"][point]
                cells[-1] = f"{share:.1%} ({100 * width:.0f}, {100 * error:+.1f})"
        fixed = f"{row['fixed']:.1%}" if "fixed" in row else "-"
        lines.append([*row["side"].split(" | "), *cells, fixed])
    return markdown_table(["", "labels or known pairs", *points, "all but chosen"], lines)
