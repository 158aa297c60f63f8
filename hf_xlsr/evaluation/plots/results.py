"""Values of several encoders with their intervals, and the languages that queries of each language retrieve."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hf_xlsr.evaluation.comparison import ComparisonTable, comparison_tables, table_title
from hf_xlsr.evaluation.plots.common import COLOURS, colours_of, save_figure, shorten, styled
from hf_xlsr.evaluation.protocols.parallel import SHARE
from hf_xlsr.evaluation.report import metric_unit
from hf_xlsr.evaluation.results import metrics_of
from hf_xlsr.utils.errors import XlsrError, did_you_mean

OTHER, OWN = COLOURS[0], COLOURS[1]
Shares = dict[str, dict[str, float]]  # language of queries -> language retrieved -> share


def plot_comparisons(folder: str | os.PathLike[str], tables: Iterable[ComparisonTable]) -> list[Path]:
    """Draws each table of `compare` in a file of its name, `PROTOCOL-SPLIT-METRIC.png`; see `plot_comparison`."""
    names = {re.sub(r"[^-.@+\w]+", "-", f"{table.name} {table.metric}"): table for table in tables}
    return [plot_comparison(Path(folder) / f"{name}.png", table) for name, table in names.items()]


def plot_retrieval(
    path: str | os.PathLike[str],
    results: Mapping[str, Mapping[str, Any]],
    *,
    metric: str | None = None,
    protocols: Sequence[str] | None = None,
) -> Path:
    """Draws results of encoders side by side, see `plot_comparison`: a panel for each protocol, split and direction.

    Args:
        results: `Results`, or what `load_results` gave, by the name of the encoder.
        metric: Last part of the keys to draw, such as `precision@5`; without it the headline of each protocol.
        protocols: First parts of the keys to draw, such as `tico19-xsr`; without it all.
    """
    tables = comparison_tables(results, [metric] if metric else ())
    known = {table.protocol for table in tables}
    if missing := [name for name in protocols or () if name not in known]:
        raise XlsrError(f"'{missing[0]}' is not in the results; {did_you_mean(missing[0], known)}")
    return plot_comparison(path, *(table for table in tables if table.protocol in (protocols or known)))


@styled
def plot_comparison(path: str | os.PathLike[str], *tables: ComparisonTable) -> Path:
    """Draws tables of `compare` below each other.

    A table has a row for each of its columns, with a point and its 95 % interval for each encoder. The last row is the
    unweighted mean over the columns that all encoders have.
    """
    colours = colours_of(label for table in tables for label in table.rows)
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
        shown = [(place, table.value(label, column)) for place, column in enumerate(table.shown)]
        offset = (number - (len(colours) - 1) / 2) * 0.7 / len(colours)
        points = [(place + offset, *found) for place, found in shown if found is not None]
        axes.errorbar(
            [factor * value for _, value, *_ in points],
            [place for place, *_ in points],
            # A value may lie outside its percentiles.
            xerr=[
                [factor * max(value - (value if low is None else low), 0.0) for _, value, low, _ in points],
                [factor * max((value if high is None else high) - value, 0.0) for _, value, _, high in points],
            ],
            fmt="o",
            markersize=4,
            linewidth=1.2,
            color=colour,
        )
    axes.set_yticks(range(len(table.shown)), table.shown)
    axes.set_ylim(len(table.shown) - 0.4, -0.6)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(table_title(table), loc="left", fontsize=10, weight="bold")


@styled
def plot_languages(
    path: str | os.PathLike[str],
    results: Mapping[str, Mapping[str, Any]],
    protocols: Sequence[str] | None = None,
) -> Path:
    """Draws what `language_bias` measured: a row for each language of queries, a column before and after a removal.

    Bars are the shares of the languages retrieved, in per cent, as in figure 2 of the CMLM paper (Yang et al., 2021). The
    query's own language has a colour of its own. A dashed line stands where all bars would end without language bias.

    Args:
        results: `Results`, or what `load_results` gave, by the name of the encoder.
        protocols: First parts of the keys to draw, such as `ntrex-language-bias-pcr1`; all of `language-bias` without.
    """
    columns = _bias_columns(results, protocols)
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


def _bias_columns(results: Mapping[str, Mapping[str, Any]], protocols: Sequence[str] | None) -> dict[str, Shares]:
    """The columns by title."""
    found: dict[str, Shares] = {}
    known = set()
    for label, content in results.items():
        biases: dict[str, list[float]] = {}
        columns: dict[str, Shares] = {}
        for record in metrics_of(content).records.values():
            known.add(record.name)
            wanted = "language-bias" in record.name if protocols is None else record.name in protocols
            title = f"{shorten(label, 30)}\n{record.name}, {record.split}"
            if wanted and not record.is_mean and record.metric == "bias":
                biases.setdefault(title, []).append(record.value)
            elif wanted and not record.is_mean and record.metric.startswith(SHARE):
                shares = columns.setdefault(title, {}).setdefault(record.languages, {})
                shares[record.metric.removeprefix(SHARE)] = record.value
        found |= {f"{title}\nmean bias {fmean(biases[title]):.2f}": shares for title, shares in columns.items()}
    if missing := [name for name in protocols or () if name not in known] or (["language-bias"] if not found else []):
        raise XlsrError(f"The results have no bias and shares of '{missing[0]}'; {did_you_mean(missing[0], known)}")
    return found


def _draw_shares(axes: Axes, shares: Mapping[str, float], language: str, *, named: bool) -> None:
    if not shares:  # another encoder was measured on this language
        axes.set_axis_off()
        return
    places = range(len(shares))
    axes.bar(
        places,
        [100 * share for share in shares.values()],
        width=0.8,
        color=[OWN if name == language else OTHER for name in shares],
    )
    axes.axhline(100 / len(shares), color="0.25", linestyle="--", linewidth=0.9)
    axes.set(ylim=(0, 100), yticks=[0, 50, 100], xlim=(-0.7, len(shares) - 0.3))
    axes.set_xticks(places, list(shares) if named else [""] * len(shares), fontsize=8)
    axes.tick_params(axis="y", labelsize=7)
    axes.tick_params(axis="x", length=0)
    axes.spines[["top", "right"]].set_visible(False)
