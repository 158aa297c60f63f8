"""Values of several encoders with their intervals."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure

from hf_xlsr.evaluation.comparison import ComparisonTable, table_title
from hf_xlsr.evaluation.plots.common import colours_of, fonts, save_figure, shorten
from hf_xlsr.evaluation.report import metric_unit


def plot_comparisons(folder: str | os.PathLike[str], tables: Iterable[ComparisonTable]) -> list[Path]:
    """Draws each table of `compare` in a file of its name, `PROTOCOL-SPLIT-METRIC.png`; see `plot_comparison`."""
    names = {re.sub(r"[^-.@+\w]+", "-", f"{table.name} {table.metric}"): table for table in tables}
    return [plot_comparison(Path(folder) / f"{name}.png", table) for name, table in names.items()]


def plot_comparison(path: str | os.PathLike[str], table: ComparisonTable) -> Path:
    """Draws a table of `compare`: a row for each of its columns, a point with its 95 % interval for each encoder."""
    colours, factor = colours_of(table.rows), 100 if metric_unit(table.metric) else 1
    figure = Figure(figsize=(7, 1.2 + len(table.columns) * (0.12 * len(colours) + 0.16)), layout="constrained")
    axes = figure.add_subplot()
    for number, (label, cells) in enumerate(table.rows.items()):
        shown = [(place, cells[column].record) for place, column in enumerate(table.columns) if column in cells]
        values = [factor * record.value for _, record in shown]
        ends = [
            [factor * (record.value - (record.value if record.low is None else record.low)) for _, record in shown],
            [factor * ((record.value if record.high is None else record.high) - record.value) for _, record in shown],
        ]
        offset = (number - (len(colours) - 1) / 2) * 0.7 / len(colours)
        axes.errorbar(
            values,
            [place + offset for place, _ in shown],
            xerr=[[max(end, 0.0) for end in side] for side in ends],  # a value may lie outside its percentiles
            fmt="o",
            markersize=4,
            linewidth=1.2,
            color=colours[label],
            label=shorten(label, 40),
        )
    axes.set_yticks(range(len(table.columns)), table.columns, fontfamily=fonts())
    axes.set_ylim(len(table.columns) - 0.4, -0.6)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(table_title(table), loc="left", fontsize=10, weight="bold")
    figure.legend(loc="outside lower left", ncols=min(len(colours), 3), frameon=False, prop={"family": fonts()})
    return save_figure(figure, path)
