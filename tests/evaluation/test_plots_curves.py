from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from plot_helpers import assert_a_picture

from hf_xlsr.evaluation.plots import plot_curves


def history(factor: float = 1.0) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for step in range(10, 110, 10):
        parts = {"loss/generative": factor * (5 / step + 1), "loss/alignment": math.exp(-step / 20)}
        entries.append({"loss": sum(parts.values()), **parts, "learning_rate": 1e-4, "epoch": step / 50, "step": step})
        if step % 50 == 0:
            metrics = {"eval_toy-tatoeba/en-fr/dev/accuracy": step / 200, "eval_toy-tatoeba/en-fr/dev/pairs": 10}
            entries.append({"eval_loss": 2.0, **metrics, "eval_runtime": 1.0, "step": step})
    return [*entries, {"train_loss": 1.5, "train_runtime": 9.0, "step": 100}]


def titles(figure: Figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes]


@pytest.mark.parametrize(("last", "scale"), [(1.0, "linear"), (0.01, "log"), (0.0, "linear"), (-0.5, "linear")])
def test_logarithmic_axis(tmp_path: Path, figures: list[Figure], last: float, scale: str):
    entries = [{"loss": 3.0, "step": 1}, {"loss": last, "step": 2}]
    plot_curves(tmp_path / "curves.png", {"run": entries})
    (losses,) = figures[0].axes  # no accuracy was logged: no second panel
    assert losses.get_yscale() == scale


def test_panels_of_several_runs(tmp_path: Path, figures: list[Figure]):
    runs = {"plain": history(), "twice": history(2.0)}
    assert_a_picture(plot_curves(tmp_path / "curves.png", runs))
    figure = figures[0]
    assert titles(figure) == ["total loss", "generative loss", "alignment loss", "toy-tatoeba/en-fr/dev\naccuracy"]
    total, generative, alignment, accuracy = figure.axes
    np.testing.assert_allclose(generative.lines[1].get_ydata(), 2 * np.asarray(generative.lines[0].get_ydata()))
    assert [line.get_linestyle() for line in total.lines] == ["-", "--", "-", "--"]
    assert alignment.get_yscale() == "log"
    np.testing.assert_allclose(accuracy.lines[0].get_xydata(), [[50, 25], [100, 50]])
    assert accuracy.get_ylabel() == "per cent"
    # One colour a run, in every panel and in the legend.
    colours = [generative.lines[0].get_color(), generative.lines[1].get_color()]
    assert [line.get_color() for line in total.lines] == [colours[0]] * 2 + [colours[1]] * 2
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["plain", "twice", "of an evaluation"]
    assert [handle.get_color() for handle in legend.legend_handles[:2]] == colours


def test_chosen_metrics(tmp_path: Path, figures: list[Figure]):
    metrics = {
        "eval_a-bucc/de-en/dev/f1": 0.5,
        "eval_a-bucc/de-en/dev/recall": 0.4,
        "eval_a-bucc/de-en/dev/threshold": 1.1,
    }
    runs = {"run": [{"step": 1, **metrics}]}
    plot_curves(tmp_path / "curves.png", runs, metrics=["recall", "threshold"])
    recall, threshold = figures[0].axes
    assert [recall.lines[0].get_ydata()[0], threshold.lines[0].get_ydata()[0]] == [40, 1.1]
    assert [recall.get_ylabel(), threshold.get_ylabel()] == ["per cent", ""]
