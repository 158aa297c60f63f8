"""Precision from labels of a sample that is spread over bands of scores, and the page on which it is labelled."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from hf_xlsr.mining.labels import (
    RowLabels,
    band_floors,
    bands_of,
    estimate_precision,
    find_labelled,
    label_curve,
    wilson_interval,
)
from hf_xlsr.mining.outputs import write_report
from hf_xlsr.mining.thresholds import gold_curve
from hf_xlsr.utils.errors import XlsrError

PAGE = Path(__file__).parent / "report_page.mjs"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")


def world(seed: int, count: int = 5000) -> tuple[np.ndarray, np.ndarray]:
    """Scores, best first, and whether each pair is right."""
    rng = np.random.default_rng(seed)
    scores = np.sort(rng.normal(1.1, 0.1, count))[::-1]
    right = rng.random(count) < expit((scores - 1.1) / 0.03)
    return scores, right


def rows_of(scores: np.ndarray) -> list[dict[str, Any]]:
    return [{"score": float(score), "source": f"en {n}", "target": f"fr {n}"} for n, score in enumerate(scores)]


def page_data(folder: Path, scores: np.ndarray) -> dict[str, Any]:
    """What the page of scored pairs holds."""
    file = folder / "page.html"
    write_report(file, iter(rows_of(scores)), scores, title="A page")
    data: dict[str, Any] = json.loads(file.read_text("utf-8").split('id="data">')[1].split("</script>")[0])
    return data


def verdicts_of(scores: np.ndarray, right: np.ndarray, labelled: Sequence[int]) -> RowLabels:
    is_labelled = np.isin(np.arange(len(scores)), labelled)
    return RowLabels(scores, is_labelled & right, is_labelled & ~right)


def first_of_page(data: dict[str, Any], count: int) -> list[int]:
    """Numbers of the first pairs that the page shows."""
    shown = [data["pairs"][place] for place in data["order"][:count]]
    return [int(pair["source"].split()[1]) for pair in shown]


def test_estimate_by_hand() -> None:
    """Two bands of 100 and 300 pairs, each with eight labels: 8 and 4 of them are accepted."""
    estimate = estimate_precision([100, 300], [8, 8], [8, 4])

    smooth_best = (8 + 1 / 8) / 8.25
    smooth_rest = (4 + 3 / 8) / 8.75
    variance = (smooth_best * (1 - smooth_best) / 16 + 9 * smooth_rest * (1 - smooth_rest) / 16) / 8
    smooth = smooth_best / 4 + 3 * smooth_rest / 4
    assert estimate.precision == pytest.approx(1 / 4 + 3 / 8)
    assert estimate.labels == pytest.approx(smooth * (1 - smooth) / variance)
    assert (estimate.low, estimate.high) == wilson_interval(estimate.precision, estimate.labels)


def test_labels_of_one_rate_and_kind_give_the_interval_of_wilson() -> None:
    """40 labels, all accepted: from 40 / (40 + 1.96 ** 2) to 1."""
    estimate = estimate_precision([50] * 8, [5] * 8, [5] * 8)

    assert estimate.labels == pytest.approx(40)
    assert estimate.low == pytest.approx(40 / (40 + 1.959964**2))
    assert estimate.high == pytest.approx(1)


def test_more_labels_of_a_band_do_not_count_more_pairs() -> None:
    """A band labelled ten times as much keeps its weight."""
    few = estimate_precision([100, 100], [10, 10], [9, 1])
    many = estimate_precision([100, 100], [100, 10], [90, 1])

    assert many.precision == pytest.approx(few.precision)
    assert few.low < many.low
    assert many.high < few.high


def test_bands_hold_equal_scores_together() -> None:
    scores = np.array([3.0] * 7 + [2.0, 1.0, 0.5])
    floors = band_floors(scores, bands=5)
    bands = bands_of(scores, floors)

    assert len(set(bands[:7])) == 1
    assert (np.diff(bands) >= 0).all()
    assert set(bands) == set(range(len(floors)))


def test_labels_tell_the_precision(tmp_path: Path) -> None:
    scores, right = world(0)
    labelled = first_of_page(page_data(tmp_path, scores), 300)

    curve = label_curve(verdicts_of(scores, right, labelled))

    truth = gold_curve(right, right, int(right.sum()), scores)
    is_known = np.isfinite(curve.precision)
    assert is_known.mean() > 0.95
    assert np.abs(curve.precision - truth.precision)[is_known].max() < 0.08
    is_covered = (curve.low <= truth.precision) & (truth.precision <= curve.high)
    assert is_covered[is_known].mean() > 0.9


def test_labels_of_the_best_pairs_say_nothing_of_others() -> None:
    scores, right = world(0)
    verdicts = verdicts_of(scores, right, range(22))

    curve = label_curve(verdicts)

    assert np.isnan(curve.precision[curve.threshold < np.quantile(scores, 0.9)]).all()
    with pytest.raises(XlsrError, match=r"1\.1"):
        curve.chosen(1.1)
    with pytest.raises(XlsrError, match="0.9"):
        curve.choose(0.9)


def test_ten_labels_give_a_wide_interval(tmp_path: Path) -> None:
    scores, right = world(1)
    labelled = first_of_page(page_data(tmp_path, scores), 10)

    _, figures = label_curve(verdicts_of(scores, right, labelled)).chosen(1.1)

    truth = right[scores >= 1.1].mean()
    assert figures["low"] < truth < figures["high"]
    assert figures["high"] - figures["low"] > 0.25


def test_order_of_the_page_leads_through_all_bands(tmp_path: Path) -> None:
    scores, _ = world(2)
    data = page_data(tmp_path, scores)
    floors = np.array(data["bands"]["floors"])

    for count in (20, 100):
        shown = scores[first_of_page(data, count)]
        per_band = np.bincount(bands_of(shown, floors), minlength=len(floors))
        assert (per_band == count / 20).all()
    assert sorted(data["order"]) == list(range(len(data["pairs"])))
    best_places = sorted(data["order"][:20])
    assert data["order"][:20] != best_places


def test_labels_change_what_is_kept() -> None:
    rows = rows_of(np.array([4.0, 3.0, 2.0, 1.0]))
    labels = {("en 0", "fr 0"): False, ("en 3", "fr 3"): True}

    verdicts = find_labelled(labels, rows)

    is_chosen = verdicts.scores >= 3
    assert verdicts.keeps(is_chosen).tolist() == [False, True, False, True]
    counts = verdicts.counts(is_chosen)
    assert list(counts.values()) == [1, 1, 1, 1]

    other_labels = {(f"en {n}", "of another run"): True for n in range(3)}
    with pytest.raises(XlsrError, match="3 labels"):
        find_labelled(other_labels, rows)


@needs_node
def test_page_estimates_as_the_command_does(tmp_path: Path) -> None:
    """Keys `j`, `a` and `r` label the pairs in the order of the page; its live curve is that of `label_curve`."""
    scores, right = world(3, count=900)
    data = page_data(tmp_path, scores)
    labelled = first_of_page(data, 60)
    keys = ["a" if right[number] else "r" for number in labelled]

    printed = subprocess.run(
        ["node", str(PAGE), str(tmp_path / "page.html"), json.dumps(keys)], capture_output=True, text=True, check=True
    )
    page = json.loads(printed.stdout)

    curve = label_curve(verdicts_of(scores, right, labelled))
    assert [point is None for point in page["precision"]] == np.isnan(curve.precision).tolist()
    for name in ("precision", "low", "high"):
        values = [np.nan if value is None else value for value in page[name]]
        np.testing.assert_allclose(values, getattr(curve, name), rtol=1e-9, atol=1e-12)
    assert "Label about" in page["live"]
    assert page["saved"].count("\n") == 61
