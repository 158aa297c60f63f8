"""Plots of translation pairs: on a plane, and their cosine similarities."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hf_xlsr.encoders.encoding import unit_length
from hf_xlsr.evaluation.plots.common import COLOURS, fonts, on_plane, save_figure, shorten
from hf_xlsr.utils.vectors import as_vectors

MOST_PAIRS = 100
PAIRS_PER_COLUMN = 20
LIST_WIDTH = 52  # columns of a terminal; a Chinese character takes two
AXIS_WIDTH = 34
NAME_WIDTH = 24
ANNOTATED_PAIRS = 20  # more cells than these leave no room for a number in each
GAP = 0.042  # between two points, as a part of the picture's side: a little more than a marker


def plot_tsne(
    path: str | os.PathLike[str],
    source_vectors: np.ndarray,
    target_vectors: np.ndarray,
    sources: Sequence[str],
    targets: Sequence[str],
    languages: tuple[str, str],
    pairs: int = 15,
    seed: int = 1,
) -> Path:
    """Draws random translation pairs on a plane (t-SNE by cosine), numbered and listed.

    Distances on the plane are only loosely those between the vectors: the picture shows whether translations meet, not
    how well. Points that would overlap are moved apart. Compare figure 3 of the dual-momentum paper (Wang et al., 2021).

    Args:
        path: The picture; its suffix is the format (`.png`, `.pdf`, `.svg`).
        source_vectors: `(n, width)`, like `target_vectors`, those of the translations.
        sources: The `n` sentences.
        targets: Their translations.
        languages: Names of the two languages, for the legend.
        pairs: How many to draw, 2 or more; all when there are fewer, and at most 100.
        seed: Of the choice of pairs and of t-SNE.
    """
    chosen, source_side, target_side = _choose(source_vectors, target_vectors, sources, targets, pairs, seed)
    count = len(chosen)
    plane = on_plane(np.concatenate([source_side, target_side]), seed)
    source_points, target_points = np.split(_spread(plane, GAP), 2)

    columns = math.ceil(count / PAIRS_PER_COLUMN)
    figure = Figure(figsize=(7.2 + 4.1 * columns, 7.2), layout="constrained")
    axes, listing = figure.subplots(1, 2, width_ratios=[7.2, 4.1 * columns])
    for (x, y), (to_x, to_y) in zip(source_points, target_points, strict=True):
        axes.plot([x, to_x], [y, to_y], color="0.6", linewidth=0.9, zorder=1)
    sides = ((source_points, languages[0], "o", COLOURS[0]), (target_points, languages[1], "s", COLOURS[1]))
    for side, language, marker, colour in sides:
        name = shorten(language, NAME_WIDTH)
        axes.scatter(*side.T, s=190, marker=marker, color=colour, edgecolor="white", label=name, zorder=2)
        for number, (x, y) in enumerate(side, start=1):
            axes.text(x, y, str(number), color="white", fontsize=8, ha="center", va="center_baseline", zorder=3)
    axes.set(xticks=[], yticks=[], title=f"{count} translation pairs, t-SNE by cosine")
    axes.margins(0.04)
    # Below the frame, where it covers no point.
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2, frameon=False, markerscale=0.7)
    _list_pairs(listing, [(sources[i], targets[i]) for i in chosen], columns)
    return save_figure(figure, path)


def plot_heatmap(
    path: str | os.PathLike[str],
    source_vectors: np.ndarray,
    target_vectors: np.ndarray,
    sources: Sequence[str],
    targets: Sequence[str],
    languages: tuple[str, str],
    pairs: int = 15,
    seed: int = 1,
) -> Path:
    """Draws the cosines between the sentences of random translation pairs, sources down and targets across.

    The translations are on the diagonal, whose cells are framed. Colours span the values that occur: compare pictures
    by the numbers of their colour bars. With up to 20 pairs each cell has its cosine. Arguments are those of `plot_tsne`;
    the same seed chooses the same pairs.
    """
    chosen, source_side, target_side = _choose(source_vectors, target_vectors, sources, targets, pairs, seed)
    count = len(chosen)
    cosines = unit_length(source_side) @ unit_length(target_side).T
    cell = 0.42 if count <= ANNOTATED_PAIRS else 0.21
    size = max(cell * count, 2.5)
    figure = Figure(figsize=(size + 4.2, size + 2.6), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(cosines, cmap="viridis")
    for index in range(count):
        # White inside black: seen on any of the map's colours.
        for colour, width in (("black", 2.6), ("white", 1.2)):
            corner = (index - 0.46, index - 0.46)
            axes.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=colour, linewidth=width))
    if count <= ANNOTATED_PAIRS:
        # The lower part of the map is dark.
        bright = cosines.min() + 0.6 * (cosines.max() - cosines.min())
        for (row, column), cosine in np.ndenumerate(cosines):
            colour = "white" if cosine <= bright else "black"
            axes.text(column, row, f"{cosine:.2f}", color=colour, fontsize=7.5, ha="center", va="center")
    # Numbers are separate labels: next to a right-to-left sentence they would change sides.
    places = range(count)
    small: dict[str, Any] = {"fontsize": 8, "family": fonts(), "parse_math": False}
    slanted: dict[str, Any] = {**small, "rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    axes.set_yticks(places, [shorten(sources[i], AXIS_WIDTH) for i in chosen], **small)
    axes.set_xticks(places, [shorten(targets[i], AXIS_WIDTH) for i in chosen], **slanted)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(places, [str(number + 1) for number in places], minor=True)
        axis.remove_overlapping_locs = False
    axes.tick_params(which="both", length=0)
    axes.tick_params(which="minor", labelsize=8)
    axes.tick_params(which="major", axis="y", pad=20)
    axes.tick_params(which="major", axis="x", pad=17)
    axes.spines[:].set_visible(False)
    axes.set(
        ylabel=shorten(languages[0], NAME_WIDTH),
        xlabel=shorten(languages[1], NAME_WIDTH),
        title=f"Cosines of {count} translation pairs",
    )
    figure.colorbar(image, ax=axes, shrink=0.8, aspect=30, label="cosine")
    return save_figure(figure, path)


def _choose(
    source_vectors: np.ndarray,
    target_vectors: np.ndarray,
    sources: Sequence[str],
    targets: Sequence[str],
    pairs: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of random pairs, ascending, and the vectors of either side of them."""
    count = min(pairs, len(sources), MOST_PAIRS)
    vectors = as_vectors(source_vectors, "source_vectors"), as_vectors(target_vectors, "target_vectors")
    chosen = np.sort(np.random.default_rng(seed).choice(len(sources), count, replace=False))
    return chosen, vectors[0][chosen], vectors[1][chosen]


def _spread(points: np.ndarray, gap: float) -> np.ndarray:
    """The points scaled to the unit square, then pushed until none is nearer than `gap` to another."""
    low, high = points.min(axis=0), points.max(axis=0)
    points = (points - low) / np.where(high > low, high - low, 1)
    first, second = np.triu_indices(len(points), 1)
    # Equal points have no direction between them: each pair of points gets its own.
    angles = np.arange(len(first)) * math.pi * (3 - math.sqrt(5))
    ways = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for _ in range(1000):
        between = points[second] - points[first]
        distances = np.linalg.norm(between, axis=1)
        close = distances < gap
        if not close.any():
            break
        directions = np.where(distances[:, None] > 1e-9, between / np.maximum(distances, 1e-9)[:, None], ways)
        # Slightly more than needed, so that rounding does not cost another round.
        pushes = directions[close] * (0.505 * gap - 0.5 * distances[close] + 1e-9)[:, None]
        np.add.at(points, first[close], -pushes)
        np.add.at(points, second[close], pushes)
    return points


def _list_pairs(axes: Axes, pairs: Sequence[tuple[str, str]], columns: int) -> None:
    axes.axis("off")
    # A short list keeps the line spacing of twelve pairs, rather than spreading over the whole height.
    rows = min(max(len(pairs), 12), PAIRS_PER_COLUMN)
    axes.set(xlim=(0, columns), ylim=(-rows, 0))
    known = fonts()
    for index, (source, target) in enumerate(pairs):
        column, row = divmod(index, PAIRS_PER_COLUMN)
        axes.text(column + 0.06, -row - 0.38, str(index + 1), fontsize=9, weight="bold", ha="right", va="center")
        # Letters differ in width: a line of capitals ends where its column does.
        room = Rectangle((column, -rows), 0.99, rows, transform=axes.transData)
        for text, colour, drop in ((source, COLOURS[0], 0.18), (target, COLOURS[1], 0.58)):
            line = axes.text(
                column + 0.085,
                -row - drop,
                shorten(text, LIST_WIDTH),
                color=colour,
                fontsize=8.5,
                va="center",
                family=known,
                parse_math=False,
                clip_on=True,
            )
            line.set_clip_path(room)
