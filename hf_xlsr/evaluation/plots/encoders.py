"""Plots of embeddings: translation pairs on a plane, and whole spaces."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hf_xlsr.encoders.encoding import unit_length
from hf_xlsr.evaluation.plots.common import COLOURS, on_plane, save_figure, shorten, styled
from hf_xlsr.utils.vectors import as_vectors

PAIRS_PER_COLUMN = 20
LIST_WIDTH = 52  # columns of a terminal; a Chinese character takes two
NAME_WIDTH = 24
GAP = 0.042  # between two points, as a part of the picture's side: a little more than a marker
SIDE = 2.3  # inches of a panel of `plot_spaces`

Sides = tuple[np.ndarray, np.ndarray]


@styled
def plot_tsne(
    path: str | os.PathLike[str],
    source_vectors: np.ndarray,
    target_vectors: np.ndarray,
    sources: Sequence[str],
    targets: Sequence[str],
    languages: tuple[str, str],
    seed: int = 1,
) -> Path:
    """Draws translation pairs, two or more, on a plane (t-SNE by cosine), numbered and listed.

    Vectors are `(n, width)`; the suffix of `path` is the format (`.png`, `.pdf`, `.svg`). Distances on the plane are only
    loosely those between the vectors: the picture shows whether translations meet, not how well. Points that would
    overlap are moved apart. Compare figure 3 of the dual-momentum paper (Wang et al., 2021).
    """
    vectors = np.concatenate(
        [as_vectors(source_vectors, "source_vectors"), as_vectors(target_vectors, "target_vectors")]
    )
    points = _spread(on_plane(vectors, seed), GAP)
    source_points, target_points = np.split(points, 2)

    list_columns = math.ceil(len(sources) / PAIRS_PER_COLUMN)
    list_width = 4.1 * list_columns
    figure = Figure(figsize=(7.2 + list_width, 7.2), layout="constrained")
    axes, listing = figure.subplots(1, 2, width_ratios=[7.2, list_width])
    for ends in zip(source_points, target_points, strict=True):
        axes.plot(
            *np.transpose(ends),
            color="0.6",
            linewidth=0.9,
            zorder=1,
        )
    _draw_points(axes, source_points, languages[0], "o", COLOURS[0])
    _draw_points(axes, target_points, languages[1], "s", COLOURS[1])

    axes.set(xticks=[], yticks=[], title=f"{len(sources)} translation pairs, t-SNE by cosine")
    axes.margins(0.04)
    # Below the frame, where it covers no point.
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        ncols=2,
        markerscale=0.7,
    )
    _list_pairs(listing, list(zip(sources, targets, strict=True)), list_columns)
    return save_figure(figure, path)


def _draw_points(axes: Axes, points: np.ndarray, language: str, marker: str, colour: str) -> None:
    """Draws numbered points, `(n, 2)`, of one language."""
    name = shorten(language, NAME_WIDTH)
    x_values, y_values = points.T
    axes.scatter(
        x_values,
        y_values,
        s=190,
        marker=marker,
        color=colour,
        edgecolor="white",
        label=name,
        zorder=2,
    )

    for number, (x, y) in enumerate(points, start=1):
        axes.text(
            x,
            y,
            str(number),
            color="white",
            fontsize=8,
            ha="center",
            va="center_baseline",
            zorder=3,
        )


@styled
def plot_spaces(
    path: str | os.PathLike[str], spaces: Mapping[str, Mapping[tuple[str, str], Sides]], seed: int = 1
) -> Path:
    """Draws the sentences of language pairs: a row for each encoder, a column for each pair, a point for each sentence.

    Where the two colours are apart the encoder separates the languages; where they mix, meaning counts more than the
    language (figure 3 of the CMLM paper, Yang et al., 2021). The number below a panel is the share of sentences whose
    nearest neighbour (by cosine, in the whole space rather than on the plane) is in the other language.

    `spaces` are, by the name of the encoder and the pair of languages, vectors of the two sides, `(n, width)` and
    `(m, width)`. Sides need not be translations. t-SNE of more than 2,000 sentences takes minutes for each panel.

    Examples:
        >>> import tempfile
        >>> rng = np.random.default_rng(1)
        >>> english, french = rng.normal(size=(2, 20, 8))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plot_spaces(f"{folder}/spaces.png", {"apart": {("en", "fr"): (english + 9, french - 9)}}).name
        'spaces.png'
    """
    pairs = dict.fromkeys(chain.from_iterable(spaces.values()))
    width = SIDE * len(pairs) + 0.6
    height = (SIDE + 0.25) * len(spaces) + 0.9
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(len(spaces), len(pairs), squeeze=False)
    for panels, (label, vectors_by_pair) in zip(grid, spaces.items(), strict=True):
        panels[0].set_ylabel(shorten(label, NAME_WIDTH), fontsize=9)
        for axes, pair in zip(panels, pairs, strict=True):
            first, second = (unit_length(as_vectors(side, label)) for side in vectors_by_pair[pair])
            _draw_space(axes, first, second, seed)

    for axes, pair in zip(grid[0], pairs, strict=True):
        axes.set_title(" and ".join(pair), fontsize=10)

    side_names = []
    for languages in zip(*pairs, strict=True):
        distinct_languages = ", ".join(dict.fromkeys(languages))
        side_names.append(shorten(distinct_languages, 2 * NAME_WIDTH))
    handles = grid[0, 0].collections
    figure.legend(
        handles,
        side_names,
        loc="outside upper center",
        ncols=2,
        markerscale=2.5,
    )
    return save_figure(figure, path)


def _draw_space(axes: Axes, first: np.ndarray, second: np.ndarray, seed: int) -> None:
    """Draws the unit vectors of two languages on a plane, and writes the share of mixed neighbours below."""
    vectors = np.concatenate([first, second])
    is_second = np.arange(len(vectors)) >= len(first)
    points = on_plane(vectors, seed)

    points_by_side = (points[~is_second], points[is_second])
    for points_of_side, colour, marker in zip(points_by_side, COLOURS, "o^", strict=False):
        x_values, y_values = points_of_side.T
        axes.scatter(
            x_values,
            y_values,
            s=7,
            color=colour,
            marker=marker,
            alpha=0.5,
            linewidths=0,
        )

    axes.set(xticks=[], yticks=[])

    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    nearest = cosines.argmax(axis=1)
    mixed_share = (is_second[nearest] != is_second).mean()
    axes.set_xlabel(f"nearest in the other language: {100 * mixed_share:.0f} %", fontsize=8)


def _spread(points: np.ndarray, gap: float) -> np.ndarray:
    """The points scaled to the unit square, then pushed until none is nearer than `gap` to another."""
    low = points.min(axis=0)
    extent = np.ptp(points, axis=0)
    points = (points - low) / np.where(extent > 0, extent, 1)
    points += 1e-6 * np.random.default_rng(0).normal(size=points.shape)  # equal points have no direction between them

    for _ in range(1000):
        differences = points[:, None] - points
        distances = np.linalg.norm(differences, axis=-1)
        close = (distances < gap) & ~np.eye(len(points), dtype=bool)
        if not close.any():
            break
        # Slightly more than needed, so that rounding does not cost another round.
        pushes = 0.505 * gap - 0.5 * distances + 1e-9
        relative_pushes = np.where(close, pushes, 0) / np.where(close, distances, 1)
        points += (relative_pushes[:, :, None] * differences).sum(axis=1)
    return points


def _list_pairs(axes: Axes, pairs: Sequence[tuple[str, str]], columns: int) -> None:
    """Lists numbered pairs, each translation below its source, in columns."""
    axes.axis("off")

    # A short list keeps the line spacing of twelve pairs, rather than spreading over the whole height.
    rows = min(max(len(pairs), 12), PAIRS_PER_COLUMN)
    axes.set(xlim=(0, columns), ylim=(-rows, 0))

    for index, pair in enumerate(pairs):
        column, row = divmod(index, PAIRS_PER_COLUMN)
        axes.text(
            column + 0.06,
            -row - 0.38,
            str(index + 1),
            fontsize=9,
            weight="bold",
            ha="right",
            va="center",
        )

        # Letters differ in width: a line of capitals ends where its column does.
        column_area = Rectangle((column, -rows), 0.99, rows, transform=axes.transData)
        for text, colour, drop in zip(pair, COLOURS, (0.18, 0.58), strict=False):
            shown = shorten(text, LIST_WIDTH)
            line = axes.text(
                column + 0.085,
                -row - drop,
                shown,
                color=colour,
                fontsize=8.5,
                va="center",
            )
            line.set(clip_on=True, clip_path=column_area)
