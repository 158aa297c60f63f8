"""Losses and metrics over training steps, of runs side by side."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hf_xlsr.evaluation.plots.common import colours_of, save_figure, shorten
from hf_xlsr.evaluation.report import lower_is_better, metric_unit
from hf_xlsr.utils.errors import XlsrError, did_you_mean

# The main metric of each protocol.
HEADLINES = ("accuracy", "precision@1", "f1", "spearman", "error")
PANELS_PER_ROW = 3

Series = dict[str, list[tuple[float, float]]]


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
        metrics: Last parts of the keys to draw, such as `recall`; without it `accuracy`, `precision@1`, `f1`,
            `spearman` and `error`.
    """
    colours = colours_of(runs)
    series = {label: _series(history) for label, history in runs.items()}
    keys = list(dict.fromkeys(key for one in series.values() for key in one))
    # The Trainer's own eval_runtime and the like have no protocol as prefix.
    measured = {_metric(key) for key in keys if key.startswith("eval_") and key.count("/") >= 3}
    # The total comes first, the parts follow in the order of the log, then the metrics.
    losses = sorted((key for key in keys if _is_loss(key) and key != "eval_loss"), key=lambda key: key != "loss")
    quantities = [*losses, *(key for key in keys if key not in losses and _metric(key) in (metrics or HEADLINES))]
    missing = next((name for name in metrics or () if name not in measured), "" if quantities else "loss")
    if missing:
        raise XlsrError(f"the logs of {', '.join(runs)} have no '{missing}'; {did_you_mean(missing, measured)}")

    columns = min(len(quantities), PANELS_PER_ROW)
    rows = math.ceil(len(quantities) / columns)
    figure = Figure(figsize=(max(4.3 * columns, 6.5), 3 * rows + 0.5), layout="constrained")
    panels = iter(figure.subplots(rows, columns, squeeze=False).flat)
    for key, axes in zip(quantities, panels, strict=False):
        drawn = []
        for label, one in series.items():
            if key in losses:
                # The evaluation's total lies dashed over that of training.
                for name, line in ((key, "-"), (f"eval_{key}", "--")):
                    if name in one:
                        _draw(axes, one[name], color=colours[label], linestyle=line)
                        drawn.append(one[name])
            elif key in one:
                factor = 100 if metric_unit(_metric(key)) else 1
                points = [(step, factor * value) for step, value in one[key]]
                _draw(axes, points, color=colours[label], marker="o", markersize=4)
        if key in losses:
            axes.set_title("total loss" if key == "loss" else f"{key.removeprefix('loss/')} loss", fontsize=10)
            values = [value for points in drawn for _, value in points]
            if min(values) > 0 and max(values) > 20 * min(values):
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter("{x:g}")
        else:
            # A key is as wide as two panels: its protocol stands above its metric.
            axes.set_title("\n".join(key.removeprefix("eval_").rsplit("/", 1)), fontsize=10)
            unit = {"%": "per cent", "×100": "times 100"}.get(metric_unit(_metric(key)), "")
            axes.set_ylabel(f"{unit} (lower is better)" if lower_is_better(_metric(key)) else unit)
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


def _series(log_history: Iterable[Mapping[str, Any]]) -> Series:
    series: Series = {}
    for entry in log_history:
        for key, value in entry.items():
            if "step" in entry and isinstance(value, (int, float)) and math.isfinite(value):
                series.setdefault(key, []).append((entry["step"], value))
    return series


def _is_loss(key: str) -> bool:
    return key in ("loss", "eval_loss") or key.startswith("loss/")


def _metric(key: str) -> str:
    return key.removeprefix("eval_").split("/")[-1]


def _draw(axes: Axes, points: Sequence[tuple[float, float]], **style: Any) -> None:
    # A single point makes no line: show it as a dot.
    if len(points) == 1:
        style["marker"] = "o"
    axes.plot(*zip(*sorted(points), strict=True), **style)
