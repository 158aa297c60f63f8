"""Pictures of the ratios of speed cases over time; they need matplotlib, of the extra `plots`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.history import Results, Series, shown_options
from hf_xlsr.evaluation.plots.common import COLOURS, save_figure, styled

TITLE_WIDTH = 95  # characters of a line
PANEL = (9.0, 3.6)  # inches


@styled
def draw(case: str, results_of: Mapping[Series, Results], folder: Path) -> Path:
    """One picture of a case: a panel for each machine, options, and time or memory, with a line for each side."""
    panels: dict[tuple[str, str, str], dict[str, Results]] = {}
    for series, results in results_of.items():
        lines = panels.setdefault((series.machine, series.options, series.kind), {})
        lines[series.side] = results

    width, height = PANEL
    figure = Figure(figsize=(width, height * len(panels)), layout="constrained")
    all_axes = figure.subplots(len(panels), squeeze=False)[:, 0]
    for axes, ((machine, options, kind), lines) in zip(all_axes, panels.items(), strict=True):
        draw_lines(axes, lines)
        heading = f"{case}, {kind}: {machine}"
        wrapped_options = textwrap.fill(shown_options(options), TITLE_WIDTH)
        axes.set_title(f"{heading}\n{wrapped_options}", fontsize=10, loc="left")
        axes.set_ylabel(f"{kind}, reference = 1")
    return save_figure(figure, folder / f"{case}.svg")


def draw_lines(axes: Axes, lines: Mapping[str, Results]) -> None:
    """The ratios of each side, by commit."""
    for number, (side, results) in enumerate(lines.items()):
        ratios = [ratio for _, ratio in results]
        axes.plot(ratios, marker="o", label=side, color=COLOURS[number % len(COLOURS)])

    commits = [commit for commit, _ in max(lines.values(), key=len)]
    axes.set_xticks(range(len(commits)), commits, rotation=30, ha="right", fontsize=9)
    axes.axhline(1, color="0.6", linewidth=0.9)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=10)
