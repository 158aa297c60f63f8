"""Plots of results and runs: values with intervals, the languages retrieved, losses and metrics over the steps."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from hf_xlsr.evaluation.comparison import HEADLINES, ComparisonTable, table_title
from hf_xlsr.evaluation.plots.common import COLOURS, save_figure, shorten, styled
from hf_xlsr.evaluation.protocols.language_bias import SHARE
from hf_xlsr.evaluation.report import lower_is_better, metric_unit
from hf_xlsr.evaluation.results import metrics_of
from hf_xlsr.utils.errors import XlsrError

OTHER, OWN = COLOURS[0], COLOURS[1]
PANELS_PER_ROW = 3
Shares = dict[str, dict[str, float]]  # language of queries -> language retrieved -> share


def plot_comparisons(folder: str | os.PathLike[str], tables: Iterable[ComparisonTable]) -> list[Path]:
    """Draws each table of `compare` in a file of its name, `PROTOCOL-SPLIT-METRIC.png`; see `plot_comparison`."""
    names = {re.sub(r"[^-.@+\w]+", "-", f"{table.name} {table.metric}"): table for table in tables}
    return [plot_comparison(Path(folder) / f"{name}.png", table) for name, table in names.items()]


@styled
def plot_comparison(path: str | os.PathLike[str], *tables: ComparisonTable) -> Path:
    """Draws tables of `compare` below each other.

    A table has a row for each of its columns, with a point and its 95 % interval for each encoder. The last row is the
    unweighted mean over the columns that all encoders have.
    """
    labels = dict.fromkeys(label for table in tables for label in table.rows)
    colours = dict(zip(labels, cycle(COLOURS), strict=False))  # after eight they repeat
    heights = [0.8 + len(table.shown) * (0.12 * len(colours) + 0.16) for table in tables]
    figure = Figure(figsize=(7, sum(heights) + 0.4), layout="constrained")
    grid = figure.subplots(len(tables), height_ratios=heights, squeeze=False)
    for axes, table in zip(grid.flat, tables, strict=True):
        _draw_table(axes, table, colours)
    handles = [Line2D([], [], color=colour, marker="o", label=shorten(label, 40)) for label, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower left", ncols=min(len(colours), 3), frameon=False)
    return save_figure(figure, path)


def _draw_table(axes: Axes, table: ComparisonTable, colours: Mapping[str, str]) -> None:
    factor = 100 if metric_unit(table.metric) else 1
    for number, (label, colour) in enumerate(colours.items()):
        offset = (number - (len(colours) - 1) / 2) * 0.7 / len(colours)
        points = []
        for place, column in enumerate(table.shown):
            if found := table.numbers(label, column):
                value, low, high = (factor * one for one in (found if len(found) == 3 else found * 3))
                # A value may lie outside its percentiles.
                points.append([value, place + offset, max(value - low, 0.0), max(high - value, 0.0)])
        values, places, *ends = np.array(points).reshape(-1, 4).T
        axes.errorbar(values, places, xerr=ends, fmt="o", markersize=4, linewidth=1.2, color=colour)
    axes.set_yticks(range(len(table.shown)), table.shown)
    axes.set_ylim(len(table.shown) - 0.4, -0.6)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(table_title(table), loc="left", fontsize=10, weight="bold")


@styled
def plot_languages(path: str | os.PathLike[str], results: Mapping[str, Mapping[str, Any]]) -> Path:
    """Draws what `language_bias` measured: a row for each language of queries, a column before and after a removal.

    Bars are the shares of the languages retrieved, in per cent, as in figure 2 of the CMLM paper (Yang et al., 2021). A
    dashed line stands where all bars would end without language bias. `results` are those of `compare`.
    """
    columns = _bias_columns(results)
    queries = list(dict.fromkeys(language for shares in columns.values() for language in shares))
    most = max(len(retrieved) for shares in columns.values() for retrieved in shares.values())
    width = max(7.0, len(columns) * max(2.4, 0.24 * most + 0.5)) + 0.4
    figure = Figure(figsize=(width, 0.85 * len(queries) + 1.3), layout="constrained")
    grid = figure.subplots(len(queries), len(columns), sharey=True, squeeze=False)
    for row, language in zip(grid, queries, strict=True):
        for axes, shares in zip(row, columns.values(), strict=True):
            _draw_shares(axes, shares.get(language, {}), language, named=row is grid[-1])
        row[0].set_ylabel(language, rotation=0, ha="right", va="center", fontsize=10, weight="bold")
    for axes, title in zip(grid[0], columns, strict=True):
        axes.set_title(title, fontsize=9)
    figure.supylabel("language of the queries", fontsize=9)
    figure.supxlabel("share of sentences retrieved in each language, %", fontsize=9)
    handles = [
        Patch(color=OWN, label="the query's own language"),
        Patch(color=OTHER, label="other languages"),
        Line2D([], [], color="0.25", linestyle="--", linewidth=0.9, label="no bias"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return save_figure(figure, path)


def _bias_columns(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Shares]:
    """The shares of each column of panels, by its title."""
    found: dict[str, Shares] = {}
    for label, content in results.items():
        biases: dict[str, list[float]] = {}
        columns: dict[str, Shares] = {}
        for record in metrics_of(content).records.values():
            if record.is_mean or "language-bias" not in record.name:
                continue
            title = f"{shorten(label, 30)}\n{record.name}, {record.split}"
            if record.metric == "bias":
                biases.setdefault(title, []).append(record.value)
            elif record.metric.startswith(SHARE):
                shares = columns.setdefault(title, {}).setdefault(record.languages, {})
                shares[record.metric.removeprefix(SHARE)] = record.value
        found |= {f"{title}\nmean bias {fmean(biases[title]):.2f}": shares for title, shares in columns.items()}
    if not found:
        raise XlsrError(f"The results of {', '.join(results)} have no protocol language-bias.")
    return found


def _draw_shares(axes: Axes, shares: Mapping[str, float], language: str, *, named: bool) -> None:
    if not shares:  # another encoder was measured on this language
        axes.set_axis_off()
        return
    places, heights = range(len(shares)), [100 * share for share in shares.values()]
    axes.bar(places, heights, width=0.8, color=[OWN if name == language else OTHER for name in shares])
    axes.axhline(100 / len(shares), color="0.25", linestyle="--", linewidth=0.9)
    axes.set(ylim=(0, 100), yticks=[0, 50, 100], xlim=(-0.7, len(shares) - 0.3))
    axes.set_xticks(places, list(shares) if named else [""] * len(shares), fontsize=8)
    axes.tick_params(axis="y", labelsize=7)
    axes.tick_params(axis="x", length=0)
    axes.spines[["top", "right"]].set_visible(False)


@styled
def plot_curves(path: str | os.PathLike[str], log_history: Iterable[Mapping[str, Any]]) -> Path:
    """Draws a run, from `trainer.state.log_history`.

    The panels are the total loss (of evaluations dashed), each part of the loss, and the main metric of each protocol;
    shares, correlations and F1 are times 100.
    """
    series = _series(log_history)
    # The total comes first, the parts follow in the order of the log, then the metrics.
    losses = sorted((key for key in series if key == "loss" or key.startswith("loss/")), key=lambda key: key != "loss")
    quantities = [*losses, *(key for key in series if key not in losses and _metric(key) in HEADLINES)]
    columns = min(len(quantities), PANELS_PER_ROW)
    rows = math.ceil(len(quantities) / columns)
    figure = Figure(figsize=(max(4.3 * columns, 6.5), 3 * rows + 0.5), layout="constrained")
    panels = iter(figure.subplots(rows, columns, squeeze=False).flat)
    for key, axes in zip(quantities, panels, strict=False):
        is_loss, unit = key in losses, metric_unit(_metric(key))
        factor = 100 if unit and not is_loss else 1
        for name, line in ((key, "-"), (f"eval_{key}", "--")):
            if points := [(step, factor * value) for step, value in sorted(series.get(name, []))]:
                marker = "" if is_loss and len(points) > 1 else "o"  # a single point makes no line
                axes.plot(*zip(*points, strict=True), line, color=COLOURS[0], marker=marker, markersize=4)
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
    if "eval_loss" in series and losses:
        handles = [Line2D([], [], color=COLOURS[0], linestyle=style) for style in ("-", "--")]
        figure.legend(handles, ["training", "evaluation"], loc="outside upper left", ncols=2, frameon=False)
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
