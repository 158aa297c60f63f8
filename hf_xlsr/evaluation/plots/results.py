"""Plots of results and runs: values with intervals, the languages retrieved, losses and metrics over the steps."""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, cycle
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from hf_xlsr.evaluation.comparison import ComparisonTable, known_headlines
from hf_xlsr.evaluation.comparison_files import metric_title, table_title
from hf_xlsr.evaluation.plots.common import COLOURS, save_figure, shorten, styled
from hf_xlsr.evaluation.protocols.language_bias import SHARE
from hf_xlsr.evaluation.report import DIRECTIONS, lower_is_better, metric_unit
from hf_xlsr.evaluation.results import metrics_of
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.printable import printable_line

OTHER_LANGUAGES_COLOUR = COLOURS[0]
QUERY_LANGUAGE_COLOUR = COLOURS[1]
PANELS_PER_ROW = 3
GAP_SHARE = 0.5  # of the range of values: wider gaps are left out of an axis
UNIT_WORDS = {"%": "per cent", "×100": "times 100", "": ""}
# Decorator of functions that draw panels without a line above and at the right.
open_frames = rc_context({"axes.spines.top": False, "axes.spines.right": False})

Shares = dict[str, dict[str, float]]  # language of queries -> language retrieved -> share
Series = dict[str, list[tuple[float, float]]]  # key of a log -> steps and values


def plot_comparisons(folder: str | os.PathLike[str], tables: Iterable[ComparisonTable]) -> list[Path]:
    """Draws comparison tables in files of their names, `PROTOCOL-SPLIT-METRIC.png`, both directions in one."""
    tables_by_name: dict[str, list[ComparisonTable]] = defaultdict(list)
    for table in tables:
        metric = table.metric
        for direction in DIRECTIONS:
            metric = metric.removeprefix(direction)
        tables_by_name[f"{table.name} {metric}"].append(table)

    tables_of_file: dict[Path, list[ComparisonTable]] = {}
    for name, same_name in tables_by_name.items():
        stem = re.sub(r"[^-.@+\w]+", "-", name)
        file = Path(folder) / f"{stem}.png"
        number = 2
        while file in tables_of_file:  # names that differ in other signs only
            file = Path(folder) / f"{stem}-{number}.png"
            number += 1
        tables_of_file[file] = same_name
    return [plot_comparison(file, *same_name) for file, same_name in tables_of_file.items()]


@styled
@open_frames
def plot_comparison(path: str | os.PathLike[str], *tables: ComparisonTable) -> Path:
    """Draws comparison tables: those of one name, such as two directions, side by side, others below each other.

    A table has a row for each of its columns, with a point and its 95 % interval for each encoder. The last row is the
    unweighted mean of the table. Where a wide gap parts the values, as with one weak encoder, the axis is broken there.
    """
    labels = dict.fromkeys(chain.from_iterable(table.rows for table in tables))
    colours = dict(zip(labels, cycle(COLOURS), strict=False))  # after eight they repeat
    is_row = len({table.name for table in tables}) == 1 and len({tuple(table.shown) for table in tables}) == 1

    row_height = 0.12 * len(colours) + 0.16
    heights = [0.8 + len(table.shown) * row_height for table in tables]
    if is_row:
        figure = Figure(figsize=(2.5 + 4.5 * len(tables), heights[0] + 0.7), layout="constrained")
        grid = figure.add_gridspec(1, len(tables))
        figure.suptitle(f"{tables[0].name}{_common_counts(tables[0])}", fontsize=10, weight="bold")
    else:
        figure = Figure(figsize=(7, sum(heights) + 0.4), layout="constrained")
        grid = figure.add_gridspec(len(tables), 1, height_ratios=heights)

    points_of_tables = [_points(table, colours) for table in tables]
    common_ranges = _ranges(np.concatenate(points_of_tables))
    for number, (table, points) in enumerate(zip(tables, points_of_tables, strict=True)):
        title = metric_title(table) if is_row else f"{table_title(table)}{_common_counts(table)}"
        ranges = common_ranges if is_row else _ranges(points)
        axes_of_ranges = _draw_table(figure, grid[number], table, colours, ranges)
        axes_of_ranges[0].set_title(title, loc="left", fontsize=10, weight="bold")
        if number == 0 or not is_row:
            names = list(map(printable_line, _row_names(table)))
            axes_of_ranges[0].set_yticks(range(len(names)), names)
            axes_of_ranges[0].tick_params(axis="y", labelleft=True)

    handles = []
    for label, colour in colours.items():
        handles.append(
            Line2D(
                [],
                [],
                color=colour,
                marker="o",
                label=shorten(label, 40),
            )
        )
    figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=min(len(colours), 3),
    )
    return save_figure(figure, path)


def _draw_table(
    figure: Figure,
    position: Any,
    table: ComparisonTable,
    colours: Mapping[str, str],
    ranges: Sequence[tuple[float, float]],
) -> list[Axes]:
    """Draws a table on an axis of each range."""
    # The narrower part keeps a third of the width, so that its intervals can be seen.
    widest = max(high - low for low, high in ranges)
    ratios = [max(high - low, widest / 2) for low, high in ranges]
    grid = position.subgridspec(1, len(ranges), width_ratios=ratios, wspace=0.04)
    axes_of_ranges = [figure.add_subplot(cell) for cell in grid]

    for axes, (low, high) in zip(axes_of_ranges, ranges, strict=True):
        for label, colour in colours.items():
            values, heights, below, above = _points(table, colours, label).T
            axes.errorbar(
                values,
                heights,
                xerr=[below, above],
                fmt="o",
                markersize=4,
                linewidth=1.2,
                color=colour,
            )
        axes.set_xlim(low, high)
        axes.set_yticks(range(len(table.shown)))
        axes.tick_params(axis="y", labelleft=False)
        axes.set_ylim(len(table.shown) - 0.4, -0.6)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.grid(axis="x", color="0.9")
        axes.set_axisbelow(True)

    for axes in axes_of_ranges[1:]:
        axes.spines["left"].set_linestyle((0, (2, 3)))  # here the axis is broken
        axes.tick_params(axis="y", length=0)
    return axes_of_ranges


def _counts(table: ComparisonTable, column: str) -> str:
    """The numbers of examples and candidates of a column, in brackets."""
    counts = []
    for name in ("n", "candidates"):
        count = table.count(column, name)
        if count is not None:
            counts.append(f"{name} {count}")
    return f" ({', '.join(counts)})" if counts else ""


def _common_counts(table: ComparisonTable) -> str:
    """What `_counts` gives of all columns alike."""
    texts = {_counts(table, column) for column in table.columns}
    return texts.pop() if len(texts) == 1 else ""


def _row_names(table: ComparisonTable) -> list[str]:
    """The columns of a table, with their counts where columns differ in them."""
    if _common_counts(table):
        return table.shown
    return [f"{column}{_counts(table, column)}" for column in table.shown]


def _points(table: ComparisonTable, labels: Iterable[str], only: str | None = None) -> np.ndarray:
    """Values of all encoders or one, their heights and the lengths of their intervals at both sides, `(points, 4)`."""
    labels = list(labels)
    factor = 100 if metric_unit(table.metric) else 1
    points = []
    for number, label in enumerate(labels):
        offset = (number - (len(labels) - 1) / 2) * 0.7 / len(labels)
        for row, column in enumerate(table.shown):
            numbers = [factor * number for number in table.numbers(label, column)]
            if not numbers or only not in (None, label):
                continue
            value, *ends = numbers
            low, high = ends or (value, value)
            # A value may lie outside its percentiles.
            points.append([value, row + offset, max(value - low, 0.0), max(high - value, 0.0)])
    return np.array(points).reshape(-1, 4)


def _ranges(points: np.ndarray) -> list[tuple[float, float]]:
    """The ranges of values to draw: one, or two where the widest gap between intervals takes more than half of it."""
    values, _, below, above = points.T
    order = np.argsort(values - below)
    lows = (values - below)[order]
    highs = np.maximum.accumulate((values + above)[order])
    total = highs[-1] - lows[0]
    gaps = lows[1:] - highs[:-1]

    parts = [(lows[0], highs[-1])]
    if len(gaps) and gaps.max() > GAP_SHARE * total:
        split = int(gaps.argmax())
        parts = [(lows[0], highs[split]), (lows[split + 1], highs[-1])]

    ranges = []
    for low, high in parts:
        margin = 0.06 * (high - low) or 0.01 * total or 0.5
        ranges.append((float(low - margin), float(high + margin)))
    return ranges


@styled
@open_frames
def plot_languages(path: str | os.PathLike[str], results: Mapping[str, Mapping[str, Any]]) -> Path:
    """Draws what `language_bias` measured: a row for each language of queries, a column before and after a removal.

    Bars are the shares of the languages retrieved, in per cent, as in figure 2 of the CMLM paper (Yang et al., 2021). A
    dashed line stands where all bars would end without language bias. `results` are those of `compare_encoders`.
    """
    columns = _shares_by_title(results)
    rows: dict[str, None] = {}  # the languages of queries
    most_bars = 0
    for shares in columns.values():
        rows |= dict.fromkeys(shares)
        most_bars = max(most_bars, *map(len, shares.values()))

    column_width = max(2.4, 0.24 * most_bars + 0.5)
    width = max(7.0, len(columns) * column_width) + 0.4

    figure = Figure(figsize=(width, 0.85 * len(rows) + 1.3), layout="constrained")
    grid = figure.subplots(len(rows), len(columns), sharey=True, squeeze=False)
    for panels, language in zip(grid, rows, strict=True):
        for axes, shares in zip(panels, columns.values(), strict=True):
            _draw_shares(axes, shares.get(language, {}), language, with_names=panels is grid[-1])
        panels[0].set_ylabel(
            language,
            rotation=0,
            ha="right",
            va="center",
            fontsize=10,
            weight="bold",
        )

    for axes, title in zip(grid[0], columns, strict=True):
        axes.set_title(title, fontsize=9)

    figure.supylabel("language of the queries", fontsize=9)
    figure.supxlabel("share of sentences retrieved in each language, %", fontsize=9)
    handles = [
        Patch(color=QUERY_LANGUAGE_COLOUR, label="the query's own language"),
        Patch(color=OTHER_LANGUAGES_COLOUR, label="other languages"),
        Line2D(
            [],
            [],
            color="0.25",
            linestyle="--",
            linewidth=0.9,
            label="no bias",
        ),
    ]
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=3,
        fontsize=9,
    )
    return save_figure(figure, path)


def _shares_by_title(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Shares]:
    """The shares that each column of panels shows, by the title of the column."""
    columns: dict[str, Shares] = {}
    for label, content in results.items():
        biases = defaultdict(list)
        shares: dict[str, Shares] = defaultdict(lambda: defaultdict(dict))
        for record in metrics_of(content).records.values():
            if record.is_mean or "language-bias" not in record.name:
                continue

            title = f"{shorten(label, 30)}\n{record.name}, {record.split}"
            if record.metric == "bias":
                biases[title].append(record.value)
            elif record.metric.startswith(SHARE):
                shares[title][record.languages][record.metric.removeprefix(SHARE)] = record.value

        for title, shares_of_title in shares.items():
            columns[f"{title}\nmean bias {fmean(biases[title]):.2f}"] = shares_of_title

    if not columns:
        raise XlsrError(f"The results of {', '.join(results)} have no protocol language-bias.")
    return columns


def _draw_shares(axes: Axes, shares: Mapping[str, float], language: str, *, with_names: bool) -> None:
    if not shares:  # another encoder was measured on this language
        axes.set_axis_off()
        return

    count = len(shares)
    heights = [100 * share for share in shares.values()]
    bars = axes.bar(range(count), heights, width=0.8, color=OTHER_LANGUAGES_COLOUR)
    for name, bar in zip(shares, bars, strict=True):
        if name == language:
            bar.set_facecolor(QUERY_LANGUAGE_COLOUR)
    axes.axhline(
        100 / count,
        color="0.25",
        linestyle="--",
        linewidth=0.9,
    )

    axes.set(ylim=(0, 100), yticks=[0, 50, 100], xlim=(-0.7, count - 0.3))
    names = list(map(printable_line, shares)) if with_names else [""] * count
    axes.set_xticks(range(count), names, fontsize=8)
    axes.tick_params(axis="y", labelsize=7)
    axes.tick_params(axis="x", length=0)


@styled
@open_frames
def plot_curves(path: str | os.PathLike[str], log_history: Iterable[Mapping[str, Any]]) -> Path:
    """Draws a run, from `trainer.state.log_history`.

    The panels are the total loss (of evaluations dashed), each part of the loss, and the main metric of each protocol;
    shares, correlations and F1 are times 100.
    """
    series = _series(log_history)
    losses = [key for key in series if key == "loss" or key.startswith("loss/")]
    losses.sort(key=lambda key: key != "loss")  # the total comes first, the parts follow in the order of the log
    headlines = known_headlines()
    metrics = [key for key in series if key not in losses and _metric(key) in headlines]

    panel_count = len(losses) + len(metrics)
    columns = min(panel_count, PANELS_PER_ROW)
    rows = math.ceil(panel_count / columns)
    width = max(4.3 * columns, 6.5)
    figure = Figure(figsize=(width, 3 * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    panels = iter(grid.flat)

    for key, axes in zip(losses, panels, strict=False):
        _draw_loss(axes, key, series)
    for key, axes in zip(metrics, panels, strict=False):
        _draw_metric(axes, key, series)
    for axes in panels:
        axes.remove()

    if "eval_loss" in series and losses:
        training = Line2D([], [], color=COLOURS[0], linestyle="-", label="training")
        evaluation = Line2D([], [], color=COLOURS[0], linestyle="--", label="evaluation")
        figure.legend(handles=[training, evaluation], loc="outside upper left", ncols=2)
    return save_figure(figure, path)


def _series(log_history: Iterable[Mapping[str, Any]]) -> Series:
    """Steps and finite values by key."""
    series: Series = defaultdict(list)
    for entry in log_history:
        if "step" not in entry:
            continue
        for key, value in entry.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                series[key].append((entry["step"], value))
    return series


def _draw_loss(axes: Axes, key: str, series: Series) -> None:
    _draw_lines(axes, key, series, with_markers=False)
    name = "total" if key == "loss" else key.removeprefix("loss/")
    axes.set_title(f"{name} loss", fontsize=10)

    values = np.concatenate([line.get_ydata() for line in axes.lines])
    if values.min() > 0 and values.max() > 20 * values.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")


def _draw_metric(axes: Axes, key: str, series: Series) -> None:
    metric = _metric(key)
    unit = metric_unit(metric)
    _draw_lines(axes, key, series, factor=100 if unit else 1, with_markers=True)
    # A key is as wide as two panels: its protocol stands above its metric.
    names = key.removeprefix("eval_").rsplit("/", 1)
    axes.set_title("\n".join(names), fontsize=10)
    label = UNIT_WORDS[unit]
    if lower_is_better(key):
        label += " (lower is better)"
    axes.set_ylabel(label)


def _draw_lines(axes: Axes, key: str, series: Series, *, factor: int = 1, with_markers: bool) -> None:
    """Draws the values of training as a line and those of evaluations as a dashed one, over the steps."""
    for name, style in ((key, "-"), (f"eval_{key}", "--")):
        points = sorted(series.get(name, []))
        if not points:
            continue

        steps, values = np.array(points).T
        marker = "o" if with_markers or len(points) == 1 else ""  # a single point makes no line
        axes.plot(
            steps,
            factor * values,
            style,
            color=COLOURS[0],
            marker=marker,
            markersize=4,
        )

    axes.grid(alpha=0.3)
    axes.set_xlabel("optimiser step")
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))


def _metric(key: str) -> str:
    return key.removeprefix("eval_").split("/")[-1]
