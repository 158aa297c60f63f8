"""Losses and metrics over training steps, of runs side by side."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hf_xlsr.evaluation.comparison import HEADLINES
from hf_xlsr.evaluation.plots.common import colours_of, save_figure, shorten, styled
from hf_xlsr.evaluation.report import lower_is_better, metric_unit
from hf_xlsr.utils.errors import XlsrError, did_you_mean

PANELS_PER_ROW = 3


@styled
def plot_curves(
    path: str | os.PathLike[str],
    runs: Mapping[str, Iterable[Mapping[str, Any]]],
    *,
    metrics: Sequence[str] | None = None,
) -> Path:
    """Draws runs side by side: a panel for each quantity, a colour for each run.

    The panels are the total loss (of evaluations dashed), each part of the loss, and each metric that any run measured;
    shares, correlations and F1 are times 100.

    Args:
        runs: `trainer.state.log_history` by the name of the run.
        metrics: Last parts of the keys to draw, such as `recall`; without it the main metric of each protocol.
    """
    colours = colours_of(runs)
    series = {label: _series(history) for label, history in runs.items()}
    keys = list(dict.fromkeys(key for one in series.values() for key in one))
    # The Trainer's own eval_runtime and the like have no protocol as prefix.
    measured = {_metric(key) for key in keys if key.startswith("eval_") and key.count("/") >= 3}
    # The total comes first, the parts follow in the order of the log, then the metrics.
    losses = sorted((key for key in keys if key == "loss" or key.startswith("loss/")), key=lambda key: key != "loss")
    quantities = [*losses, *(key for key in keys if key not in losses and _metric(key) in (metrics or HEADLINES))]
    missing = next((name for name in metrics or () if name not in measured), "" if quantities else "loss")
    if missing:
        raise XlsrError(f"the logs of {', '.join(runs)} have no '{missing}'; {did_you_mean(missing, measured)}")

    columns = min(len(quantities), PANELS_PER_ROW)
    rows = math.ceil(len(quantities) / columns)
    figure = Figure(figsize=(max(4.3 * columns, 6.5), 3 * rows + 0.5), layout="constrained")
    panels = iter(figure.subplots(rows, columns, squeeze=False).flat)
    for key, axes in zip(quantities, panels, strict=False):
        is_loss, unit = key in losses, metric_unit(_metric(key))
        factor = 100 if unit and not is_loss else 1
        for label, one in series.items():
            # The evaluation's total lies dashed over that of training; a single point makes no line.
            for name, line in ((key, "-"), (f"eval_{key}", "--")):
                if points := [(step, factor * value) for step, value in sorted(one.get(name, []))]:
                    marker = "" if is_loss and len(points) > 1 else "o"
                    axes.plot(*zip(*points, strict=True), line, color=colours[label], marker=marker, markersize=4)
        if is_loss:
            axes.set_title("total loss" if key == "loss" else f"{key.removeprefix('loss/')} loss", fontsize=10)
            values = np.concatenate([line.get_ydata() for line in axes.lines])
            if values.min() > 0 and values.max() > 20 * values.min():
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter("{x:g}")
        else:
            # A key is as wide as two panels: its protocol stands above its metric.
            axes.set_title("\n".join(key.removeprefix("eval_").rsplit("/", 1)), fontsize=10)
            words = {"%": "per cent", "×100": "times 100"}.get(unit, "")
            axes.set_ylabel(f"{words} (lower is better)" if lower_is_better(_metric(key)) else words)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("optimiser step")
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
    for axes in panels:
        axes.remove()
    handles = [Line2D([], [], color=colour, label=shorten(label, 40)) for label, colour in colours.items()]
    if any("eval_loss" in one for one in series.values()) and losses:
        handles.append(Line2D([], [], color="0.4", linestyle="--", label="of an evaluation"))
    figure.legend(handles=handles, loc="outside upper left", ncols=min(len(handles), columns + 1), frameon=False)
    return save_figure(figure, path)


def _series(log_history: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Steps and finite values by key."""
    series: dict[str, list[tuple[float, float]]] = {}
    for entry in log_history:
        for key, value in entry.items():
            if "step" in entry and isinstance(value, (int, float)) and math.isfinite(value):
                series.setdefault(key, []).append((entry["step"], value))
    return series


def _metric(key: str) -> str:
    return key.removeprefix("eval_").split("/")[-1]
