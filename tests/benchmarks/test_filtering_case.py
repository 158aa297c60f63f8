"""The benchmark of filter from lines to tables, on sentences whose numbers say which belong together."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from benchmarks.filtering import (
    FOREIGN,
    OWN,
    SIDES,
    Cell,
    Rankings,
    held_out_curves,
    measured_cell,
    report_lines,
    threshold_figures,
)
from benchmarks.foreign_noise import Material
from hf_xlsr.mining.filtering.damage import GOOD

pytestmark = pytest.mark.slow


class NumberEncoder:
    """Encodes sentences with the same number near each other."""

    def encode(self, texts: list[str], **options: Any) -> np.ndarray:
        vectors = []
        for text in texts:
            meaning = np.random.default_rng(int("".join(filter(str.isdigit, text)) or 0)).normal(size=24)
            own = np.random.default_rng(zlib.crc32(text.encode())).normal(size=24)
            vectors.append(meaning + 0.3 * own)
        return np.stack(vectors).astype(np.float32)


def row(number: int) -> dict[str, Any]:
    source = f"The house {number} is not red, and the old garden is far away."
    target = f"Das Haus {number} ist nicht rot, und der alte Garten ist weit weg."
    return {"source": source, "target": target, "source_lang": "en", "target_lang": "de", "line": number}


@pytest.fixture(scope="module")
def cell() -> Cell:
    rows = [row(number) for number in range(120)]
    known = [row(number) for number in range(1000, 1240)]
    material = Material(rows, nearest=[(number + 50) % 120 for number in range(120)])
    return measured_cell(material, known, NumberEncoder(), "", seed=1, identifier="script")


def test_a_cell_has_scores_of_each_pair(cell: Cell) -> None:
    for name in (FOREIGN, OWN):
        for scored in (cell[name], cell[name]["held_out"]):
            for side in SIDES:
                assert len(scored[side]) == len(scored["kinds"])
    kinds = np.array(cell[FOREIGN]["kinds"])
    margin = np.array(cell[FOREIGN]["margin"])
    assert margin[kinds == GOOD].min() > margin[kinds == "nearest other"].max()


def test_areas_are_those_of_the_scores(cell: Cell) -> None:
    rankings = Rankings({("de", 1): cell}, resamples=50)
    area, precision = rankings.of("margin", FOREIGN, "nearest other")
    assert area.shape == precision.shape == (51,)
    assert (area[0], precision[0]) == pytest.approx((1.0, 1.0))


def test_thresholds_promise_what_held_out_pairs_say(cell: Cell) -> None:
    cells = {("de", 1): cell}
    curves = held_out_curves(cells)
    figures = threshold_figures(cells, curves, FOREIGN, "filter", 0.9)

    threshold, printed = curves[("de", 1), FOREIGN, "filter"].chosen(None, 0.9)
    is_kept = np.array(cell[FOREIGN]["filter"]) >= threshold
    is_good = np.array(cell[FOREIGN]["kinds"]) == GOOD
    assert figures["printed precision"] == printed["precision"] >= 0.9
    assert figures["precision"] == is_good[is_kept].mean()
    assert figures["recall"] == is_kept[is_good].mean()


def test_report_has_a_row_for_each_kind(cell: Cell) -> None:
    cells = {("de", 1): cell | {"known": 300, "removed": 0, "cpu_seconds": 1.0}}
    page = "\n".join(report_lines({"split": "test"}, cells, Rankings(cells, resamples=20)))
    for kind in {*cell[FOREIGN]["kinds"], *cell[OWN]["kinds"]} - {GOOD}:
        assert f"| {kind} |" in page
