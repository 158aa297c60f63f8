"""Plots of whole spaces: the sentences of each language pair on a plane, for each encoder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from hf_xlsr.encoders.encoding import unit_length
from hf_xlsr.evaluation.plots.common import COLOURS, fonts, on_plane, save_figure, shorten
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.vectors import as_vectors

SIDE = 2.3  # inches of a panel
MOST_ROWS, MOST_COLUMNS = 6, 6
MOST_SENTENCES = 2000  # of a side: t-SNE of more takes minutes for each panel
FEWEST_SENTENCES = 5
NAME_WIDTH = 26

Pair = tuple[str, str]
Sides = tuple[np.ndarray, np.ndarray]


def plot_spaces(path: str | os.PathLike[str], spaces: Mapping[str, Mapping[Pair, Sides]], seed: int = 1) -> Path:
    """Draws the sentences of language pairs: a row for each encoder, a column for each pair, a point for each sentence.

    Where the two colours are apart the encoder separates the languages; where they mix, meaning counts more than the
    language (figure 3 of the CMLM paper, Yang et al., 2021). The number below a panel is the share of sentences whose
    nearest neighbour (by cosine, in the whole space rather than on the plane) is in the other language.

    `spaces` are, by the name of the encoder and the pair of languages, vectors of the two sides, `(n, width)` and
    `(m, width)`; `n` and `m` are 5 to 2,000, and there are up to 6 x 6 panels. Sides need not be translations.

    Examples:
        >>> import tempfile
        >>> rng = np.random.default_rng(1)
        >>> english, french = rng.normal(size=(2, 20, 8))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plot_spaces(f"{folder}/spaces.png", {"apart": {("en", "fr"): (english + 9, french - 9)}}).name
        'spaces.png'
    """
    check_panels(
        {label: {pair: [*map(len, sides)] for pair, sides in of_pairs.items()} for label, of_pairs in spaces.items()}
    )
    pairs = list(next(iter(spaces.values())))
    figure = Figure(figsize=(SIDE * len(pairs) + 0.6, (SIDE + 0.25) * len(spaces) + 0.9), layout="constrained")
    grid = figure.subplots(len(spaces), len(pairs), squeeze=False)
    drawn = []
    for row, (label, of_pairs) in zip(grid, spaces.items(), strict=True):
        for axes, pair in zip(row, pairs, strict=True):
            first, second = (unit_length(as_vectors(side, f"{label}, {'-'.join(pair)}")) for side in of_pairs[pair])
            plane = on_plane(np.concatenate([first, second]), seed)
            for side, colour, marker in (
                (plane[: len(first)], COLOURS[0], "o"),
                (plane[len(first) :], COLOURS[1], "^"),
            ):
                drawn.append(axes.scatter(*side.T, s=7, color=colour, marker=marker, alpha=0.5, linewidths=0))
            axes.set(xticks=[], yticks=[])
            axes.set_xlabel(f"nearest in the other language: {100 * _mixed(first, second):.0f} %", fontsize=8)
        row[0].set_ylabel(shorten(label, NAME_WIDTH), fontsize=9, family=fonts(), parse_math=False)
    for axes, (source, target) in zip(grid[0], pairs, strict=True):
        axes.set_title(f"{source} and {target}", fontsize=10)
    names = [shorten(", ".join(dict.fromkeys(pair[side] for pair in pairs)), 2 * NAME_WIDTH) for side in (0, 1)]
    figure.legend(drawn[:2], names, loc="outside upper center", ncols=2, frameon=False, markerscale=2.5)
    return save_figure(figure, path)


def check_panels(sizes: Mapping[str, Mapping[Pair, Sequence[int]]]) -> None:
    """Checks numbers of sentences by encoder and language pair, before any vectors are computed."""
    columns = max(map(len, sizes.values()), default=0)
    counts = {count for pairs in sizes.values() for sides in pairs.values() for count in sides} or {0}
    fits = len(sizes) <= MOST_ROWS and columns <= MOST_COLUMNS
    if not fits or min(counts) < FEWEST_SENTENCES or max(counts) > MOST_SENTENCES:
        raise XlsrError(
            f"a picture shows up to {MOST_ROWS} encoders, {MOST_COLUMNS} language pairs and {FEWEST_SENTENCES} to "
            f"{MOST_SENTENCES:,} sentences of each language, got {len(sizes)}, {columns} and {min(counts)} to "
            f"{max(counts)}."
        )


def _mixed(first: np.ndarray, second: np.ndarray) -> float:
    """Share of sentences of both sides whose nearest other sentence is of the other side."""
    both = np.concatenate([first, second])
    of_second = np.arange(len(both)) >= len(first)
    cosines = both @ both.T
    np.fill_diagonal(cosines, -np.inf)
    return float((of_second[cosines.argmax(axis=1)] != of_second).mean())
