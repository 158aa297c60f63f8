"""Pictures of a dataset's card: the distribution of scores, and precision and recall by threshold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hf_xlsr.evaluation.plots.common import COLOURS, save_figure, styled

SIZE = (6.4, 3.2)  # inches


@styled
def draw_scores(histogram: Mapping[str, Any], threshold: float | None, path: str | Path) -> None:
    """Draws how many pairs have which score, and the threshold as a line."""
    figure = _figure()
    axes = figure.subplots()
    axes.stairs(histogram["counts"], histogram["edges"], fill=True, color=COLOURS[0])
    if threshold is not None:
        axes.axvline(threshold, color=COLOURS[1], label=f"threshold {threshold:.4f}")
        axes.legend()
    axes.set_xlabel(histogram["of"])
    axes.set_ylabel("pairs")
    save_figure(figure, path)


@styled
def draw_curve(curve: Mapping[str, Any], threshold: float | None, path: str | Path) -> None:
    """Draws precision and, where it is known, recall by threshold, with their 95 % intervals."""
    figure = _figure()
    axes = figure.subplots()
    thresholds = _numbers(curve["threshold"])
    shares = {"precision": ("low", "high"), "recall": ("recall_low", "recall_high")}
    for (name, ends), colour in zip(shares.items(), COLOURS, strict=False):
        if curve.get(name) is None:
            continue
        low, high = (_numbers(curve[end]) for end in ends)
        axes.plot(thresholds, _numbers(curve[name]), color=colour, label=name)
        axes.fill_between(thresholds, low, high, color=colour, alpha=0.2, linewidth=0)
    if threshold is not None:
        axes.axvline(threshold, color=COLOURS[7], linestyle="--", label=f"threshold {threshold:.4f}")
    axes.set_xlabel("threshold")
    axes.set_ylim(0, 1.02)
    axes.legend()
    save_figure(figure, path)


def _figure() -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=SIZE, layout="constrained")


def _numbers(values: Any) -> np.ndarray:
    """Numbers of JSON; NaN for None."""
    return np.array(values, dtype=np.float64)
