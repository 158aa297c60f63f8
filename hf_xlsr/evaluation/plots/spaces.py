"""Whole spaces on a plane: the sentences of each pair of languages, as each encoder places them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from hf_xlsr.encoders.encoding import unit_length
from hf_xlsr.evaluation.plots.common import COLOURS, fonts, save_figure, shorten
from hf_xlsr.evaluation.plots.plane import on_plane
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
    """Draws what encoders make of languages: a row for each encoder, a column for each pair, a point for each sentence.

    Where the two colours lie apart the encoder keeps the languages apart; where they mix, meaning counts more than the
    language. The number below a panel is the share of sentences whose nearest neighbour (by cosine, in the whole space
    rather than on the plane) is of the other language: near 0 where languages lie apart, and 100 % where the nearest of
    every sentence is in the other one, such as its translation.

    Args:
        path: The picture; its ending chooses the format (`.png`, `.pdf`, `.svg`).
        spaces: By the name of the encoder and the pair of languages, vectors of the two sides, `(n, width)` and
            `(m, width)`; `n` and `m` are 5 to 2,000. Sides need not be translations, nor of equal length.
        seed: Of t-SNE.

    Returns:
        `path`.

    Raises:
        XlsrError: there is nothing to draw or more than 6 x 6 panels, the encoders have other pairs, a side has too few
            or too many sentences, a vector is not finite, or the format is unknown.

    Example:
        >>> import tempfile
        >>> rng = np.random.default_rng(1)
        >>> english, french = rng.normal(size=(2, 20, 8))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plot_spaces(f"{folder}/spaces.png", {"apart": {("en", "fr"): (english + 9, french - 9)}}).name
        'spaces.png'

    References:
        Figure 3 of *Universal Sentence Representation Learning with Conditional Masked Language Model* (Yang et al.,
        2021).
    """
    pairs = _check(spaces)
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
    """Refuses what no picture has room for; it needs no vectors, so that it can be told before any are computed.

    Args:
        sizes: By the name of the encoder and the pair of languages, the numbers of sentences of the two sides.

    Raises:
        XlsrError: there are more than 6 x 6 panels, or a side has too few or too many sentences.

    Example:
        >>> check_panels({"ours": {("en", "fr"): (500, 500)}})
    """
    pairs = max(map(len, sizes.values()))
    if len(sizes) > MOST_ROWS or pairs > MOST_COLUMNS:
        raise XlsrError(
            f"{len(sizes)} encoders and {pairs} pairs of languages are to be drawn; a picture shows "
            f"{MOST_ROWS} and {MOST_COLUMNS} at most."
        )
    for label, of_pairs in sizes.items():
        for pair, sides in of_pairs.items():
            if min(sides) < FEWEST_SENTENCES or max(sides) > MOST_SENTENCES:
                raise XlsrError(
                    f"'{label}' has {' and '.join(map(str, sides))} sentences of {'-'.join(pair)}; draw "
                    f"{FEWEST_SENTENCES} to {MOST_SENTENCES:,} of each language."
                )


def _check(spaces: Mapping[str, Mapping[Pair, Sides]]) -> list[Pair]:
    """The pairs, which all encoders have in common."""
    if not spaces or not all(spaces.values()):
        raise XlsrError("there is no space to draw; give vectors of one encoder and one pair of languages at least.")
    (first, pairs), *others = [(label, list(of_pairs)) for label, of_pairs in spaces.items()]
    for label, found in others:
        if set(found) != set(pairs):
            raise XlsrError(
                f"'{label}' has other pairs of languages than '{first}'; give vectors of the same pairs for each."
            )
    check_panels(
        {label: {pair: [len(side) for side in sides] for pair, sides in of.items()} for label, of in spaces.items()}
    )
    for label, of_pairs in spaces.items():
        for pair, sides in of_pairs.items():
            widths = [np.shape(side)[-1] for side in sides]
            if len(set(widths)) > 1:
                raise XlsrError(
                    f"vectors of '{label}' are {' and '.join(map(str, widths))} wide in {'-'.join(pair)}; encode both "
                    "languages with one model."
                )
    return pairs


def _mixed(first: np.ndarray, second: np.ndarray) -> float:
    """Share of sentences of both sides whose nearest other sentence is of the other side."""
    both = np.concatenate([first, second])
    of_second = np.arange(len(both)) >= len(first)
    cosines = both @ both.T
    np.fill_diagonal(cosines, -np.inf)
    return float((of_second[cosines.argmax(axis=1)] != of_second).mean())
