"""Bars of retrieval results: languages down, directions across, encoders side by side."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from hf_xlsr.evaluation.plots.common import colours_of, fonts, save_figure, shorten
from hf_xlsr.evaluation.report import lower_is_better, metric_unit, metric_value
from hf_xlsr.evaluation.results import Results, metrics_of
from hf_xlsr.utils.errors import XlsrError, did_you_mean

# What stands for a protocol in a picture, the first that it has.
HEADLINES = ("error", "precision@1", "f1", "accuracy")
RETRIEVAL = {"tatoeba", "xsim", "xsr", "bucc"}
FORWARD, BACKWARD, ONLY = "forward", "backward", "only"
DIRECTIONS = {"source_to_target_": FORWARD, "target_to_source_": BACKWARD}
Bars = dict[tuple[str, str], float]  # by direction and label


@dataclass
class _Block:
    title: str
    metric: str
    rows: dict[str, Bars] = field(default_factory=dict)
    sides: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def directions(self) -> list[str]:
        found = {direction for bars in self.rows.values() for direction, _ in bars}
        return [direction for direction in (FORWARD, BACKWARD) if direction in found]


def plot_retrieval(
    path: str | os.PathLike[str],
    results: Mapping[str, Mapping[str, Any]],
    *,
    metric: str | None = None,
    protocols: Sequence[str] | None = None,
) -> Path:
    """Draws retrieval results as bars: a row for each language pair, a colour for each encoder.

    Each protocol and split has a block. Both directions of a protocol are side by side, without their average. The best
    row is at the top; the title says where lower is better. Two or more rows are followed by their unweighted mean, for
    each encoder that has all of them.

    Args:
        results: `Results`, or what `load_results` gave, by the name of the encoder.
        metric: Last part of the keys to draw, without a direction in front, such as `precision@5`; without it the
            first that a protocol has of `error`, `precision@1`, `f1`, `accuracy`.
        protocols: First parts of the keys to draw, such as `tico19-xsr`; without it each kind of `tatoeba`, `xsim`,
            `xsr` and `bucc`.
    """
    colours = colours_of(results)
    blocks = _blocks({label: metrics_of(result) for label, result in results.items()}, metric, protocols)
    heights = [(len(block.rows) + (len(block.rows) > 1)) * (0.17 * len(colours) + 0.13) + 1.0 for block in blocks]
    width = 10.0 if any(len(block.directions) > 1 for block in blocks) else 7.0
    figure = Figure(figsize=(width, sum(heights) + 0.4), layout="constrained")
    grid = figure.add_gridspec(len(blocks), 2, height_ratios=heights)
    for number, block in enumerate(blocks):
        directions = block.directions
        left: Axes | None = None
        for column, direction in enumerate(directions):
            place = grid[number, column] if len(directions) > 1 else grid[number, :]
            axes = figure.add_subplot(place, sharey=left, sharex=left)
            _draw_bars(axes, block, direction, colours)
            if left is None:
                left = axes
                axes.set_title(block.title, loc="left", fontsize=10, weight="bold")
            else:
                axes.tick_params(labelleft=False)
    handles = [Patch(color=colour, label=shorten(label, 40)) for label, colour in colours.items()]
    columns = min(len(handles), 3)
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False, prop={"family": fonts()})
    return save_figure(figure, path)


def _blocks(results: Mapping[str, Results], metric: str | None, protocols: Sequence[str] | None) -> list[_Block]:
    found: dict[tuple[str, str], dict[str, dict[str, Bars]]] = {}
    sides: dict[str, tuple[str, str]] = {}
    names: set[str] = set()
    for label, values in results.items():
        for result in values.records.values():
            names.add(result.name)
            wanted = result.protocol.split("-")[0] in RETRIEVAL if protocols is None else result.name in protocols
            if not wanted or result.is_mean or isinstance(result.value, int):
                continue
            prefix = next((prefix for prefix in DIRECTIONS if result.metric.startswith(prefix)), "")
            rows = found.setdefault((result.name, result.split), {}).setdefault(result.metric.removeprefix(prefix), {})
            rows.setdefault(result.languages, {})[DIRECTIONS.get(prefix, ONLY), label] = result.value
            sides[result.languages] = result.source, result.target
    measured = {name for kinds in found.values() for name in kinds}
    asked = [*((name, names) for name in protocols or ()), *([(metric, measured)] if metric else [])]
    for name, known in asked:
        if name not in known:
            raise XlsrError(f"'{name}' is not in the results; {did_you_mean(name, known)}")
    blocks = []
    for (protocol, split), kinds in found.items():
        chosen = next((name for name in ([metric] if metric else HEADLINES) if name in kinds), None)
        if chosen is None:
            continue
        rows = _by_direction(kinds[chosen], sides)
        falling = not lower_is_better(chosen)
        order = sorted(rows, key=partial(_standing, rows), reverse=falling)
        words = chosen.replace("_", " ") + ("" if falling else " (lower is better)")
        ordered = {row: rows[row] for row in order}
        blocks.append(_Block(f"{protocol}, {split}: {words}", chosen, ordered, {row: sides[row] for row in order}))
    if not blocks:
        raise XlsrError(
            "the results have no retrieval protocol (tatoeba, xsim, xsr, bucc); name others by `protocols`."
        )
    return blocks


def _by_direction(rows: Mapping[str, Bars], sides: Mapping[str, tuple[str, str]]) -> dict[str, Bars]:
    """Joins what was measured both ways: by two metrics of one language pair, or under the pair and its reverse."""
    joined: dict[str, Bars] = {}
    for languages, bars in rows.items():
        one_way = {label: value for (direction, label), value in bars.items() if direction == ONLY}
        both_ways = {key: value for key, value in bars.items() if key[0] != ONLY}
        reverse = "-".join(reversed(sides[languages]))
        if both_ways:
            joined[languages] = both_ways
        elif reverse in joined and all(direction == FORWARD for direction, _ in joined[reverse]):
            joined[reverse] |= {(BACKWARD, label): value for label, value in one_way.items()}
        else:
            joined[languages] = {(FORWARD, label): value for label, value in one_way.items()}
    return joined


def _standing(rows: Mapping[str, Bars], row: str) -> float:
    # Only encoders that have all rows decide the order, if any: a weak one would lower just the rows that it has.
    whole = [key for key in rows[row] if all(key in other for other in rows.values())]
    return fmean(rows[row][key] for key in whole or rows[row])


def _direction_name(block: _Block, direction: str) -> str:
    first, second = map(set, zip(*block.sides.values(), strict=True))
    one, other = ("first", "second")
    if len(first) == 1 or len(second) == 1:
        one, other = (names.pop() if len(names) == 1 else "xx" for names in (first, second))
    return f"{one} → {other}" if direction == FORWARD else f"{other} → {one}"


def _draw_bars(axes: Axes, block: _Block, direction: str, colours: Mapping[str, str]) -> None:
    unit = metric_unit(block.metric)
    factor = 100 if unit else 1
    names, rows = list(block.rows), list(block.rows.values())
    if len(rows) > 1:
        means = {
            key: fmean(row[key] for row in rows) for key in dict.fromkeys(rows[0]) if all(key in row for row in rows)
        }
        names.append(f"mean of {len(rows)}")
        rows.append(means)
    height = 0.8 / len(colours)
    for number, (label, colour) in enumerate(colours.items()):
        drawn = [(place, row[direction, label]) for place, row in enumerate(rows) if (direction, label) in row]
        offset = (number - (len(colours) - 1) / 2) * height
        bars = axes.barh(
            [place + offset for place, _ in drawn], [factor * value for _, value in drawn], height, color=colour
        )
        written = [metric_value(block.metric, value) for _, value in drawn]
        axes.bar_label(bars, written, padding=2, fontsize=7.5)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(len(names) - 0.4, -0.6)
    if len(rows) > 1:
        axes.axhline(len(names) - 1.5, color="0.4", linewidth=0.8)
    highest = factor * max(value for row in block.rows.values() for value in row.values())
    if factor == 100 and not lower_is_better(block.metric):
        highest = 100.0
    axes.set_xlim(0, 1.12 * highest or 1.0)
    words = f"{block.metric.replace('_', ' ')} {unit}".rstrip()
    axes.set_xlabel(
        f"{_direction_name(block, direction)}: {words}" if len(block.directions) > 1 else words, fontsize=9
    )
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
