"""Pictures of a run: translation pairs on a plane, and losses over training steps."""

from __future__ import annotations

import logging
import math
import os
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from sklearn.manifold import TSNE

from hf_xlsr.errors import XlsrError

logger = logging.getLogger(__name__)

DPI = 150
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f")
LABEL_WIDTH = 40  # columns of a terminal; a Chinese character takes two
PAIRS_PER_COLUMN = 20
# matplotlib takes a glyph from the first of these that has it.
FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans Arabic",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Arial Unicode MS",
    "Microsoft YaHei",
)
ACCURACIES = ("accuracy", "precision@1")


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
    """Draws random translation pairs on a plane (t-SNE by cosine); each pair carries one number, listed beside.

    Distances in such a picture are only loosely those between the vectors: it shows whether translations meet, not how
    well.

    Args:
        path: The picture; its ending chooses the format (`.png`, `.pdf`, `.svg`).
        source_vectors: `(n, width)`.
        target_vectors: Vectors of the translations, `(n, width)`.
        sources: The `n` sentences.
        targets: Their translations.
        languages: Names of the two languages, for the legend.
        pairs: How many to draw, 2 or more; all when there are fewer.
        seed: Of the choice of pairs and of t-SNE.

    Returns:
        `path`.

    Raises:
        XlsrError: the four inputs differ in length, fewer than 2 pairs are left, or the format is unknown.
    """
    sizes = [len(column) for column in (source_vectors, target_vectors, sources, targets)]
    if len(set(sizes)) > 1:
        raise XlsrError(
            f"vectors and sentences differ in number ({', '.join(map(str, sizes))}); give one of each for every pair."
        )
    count = min(pairs, sizes[0])
    if count < 2:
        raise XlsrError(f"there is {count} pair to draw; give 2 or more.")
    chosen = np.sort(np.random.default_rng(seed).choice(sizes[0], count, replace=False))
    points = np.concatenate([np.asarray(source_vectors)[chosen], np.asarray(target_vectors)[chosen]])
    # Perplexity is about the number of neighbours that count: it cannot come near the number of points.
    perplexity = min(30.0, (2 * count - 1) / 3)
    plane = TSNE(2, perplexity=perplexity, metric="cosine", init="pca", random_state=seed).fit_transform(points)
    source_points, target_points = plane[:count], plane[count:]

    columns = math.ceil(count / PAIRS_PER_COLUMN)
    figure = Figure(figsize=(7 + 3.4 * columns, 7), layout="constrained")
    axes, listing = figure.subplots(1, 2, width_ratios=[7, 3.4 * columns])
    for (x, y), (to_x, to_y) in zip(source_points, target_points, strict=True):
        axes.plot([x, to_x], [y, to_y], color="0.6", linewidth=0.9, zorder=1)
    sides = ((source_points, languages[0], "o", COLOURS[0]), (target_points, languages[1], "s", COLOURS[1]))
    # Where the two points of a pair meet, the target's covers the source's, number and all.
    for layer, (side, language, marker, colour) in enumerate(sides, start=2):
        axes.scatter(*side.T, s=190, marker=marker, color=colour, edgecolor="white", label=language, zorder=layer)
        for number, (x, y) in enumerate(side, start=1):
            axes.text(x, y, str(number), color="white", fontsize=8, ha="center", va="center_baseline", zorder=layer)
    axes.set(xticks=[], yticks=[], title=f"{count} translation pairs, t-SNE by cosine")
    axes.margins(0.08)
    axes.legend(loc="best", markerscale=0.7)
    _list_pairs(listing, [(sources[i], targets[i]) for i in chosen], columns)
    return _save(figure, path)


def plot_loss_curves(path: str | os.PathLike[str], log_history: Iterable[Mapping[str, Any]]) -> Path:
    """Draws the losses that a Trainer logged, and under them the accuracies that were measured on the way.

    The upper panel holds `loss` (thick), each `loss/part` and `eval_loss` (dashed), on a logarithmic axis when they
    span more than a factor of 20. The lower one, present when there is something to show, holds each metric that is
    called `accuracy` or `precision@1`, with or without a protocol in front, in per cent.

    Args:
        path: The picture; its ending chooses the format (`.png`, `.pdf`, `.svg`).
        log_history: `trainer.state.log_history`.

    Returns:
        `path`.

    Raises:
        XlsrError: no loss was logged, or the format is unknown.
    """
    series: dict[str, list[tuple[float, float]]] = {}
    for entry in log_history:
        for key, value in entry.items():
            if "step" in entry and isinstance(value, (int, float)) and math.isfinite(value):
                series.setdefault(key, []).append((entry["step"], value))
    losses = {key: points for key, points in series.items() if key in ("loss", "eval_loss") or key.startswith("loss/")}
    if not losses:
        raise XlsrError("log_history holds no 'loss'; train with logging_steps at or below the number of steps.")
    accuracies = {
        key: points for key, points in series.items() if key.removeprefix("eval_").split("/")[-1] in ACCURACIES
    }

    panels = 2 if accuracies else 1
    figure = Figure(figsize=(9, 3.8 * panels + 0.6), layout="constrained")
    grid = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
    colours = iter(COLOURS * math.ceil(len(losses) / len(COLOURS)))
    for key in sorted(losses, key=lambda key: (key.startswith("loss/"), key == "eval_loss")):
        style = {"loss": ("total", "-", 2.4), "eval_loss": ("total, evaluation", "--", 1.8)}
        label, line, width = style.get(key, (key.removeprefix("loss/"), "-", 1.3))
        _draw(grid[0], losses[key], label=label, linestyle=line, linewidth=width, color=next(colours))
    values = [value for points in losses.values() for _, value in points]
    if min(values) > 0 and max(values) > 20 * min(values):
        grid[0].set_yscale("log")
        grid[0].yaxis.set_major_formatter("{x:g}")
    grid[0].set(title="Losses", ylabel="loss")
    for index, (key, points) in enumerate(accuracies.items()):
        percent = [(step, 100 * value) for step, value in points]
        _draw(
            grid[1],
            percent,
            label=key.removeprefix("eval_"),
            color=COLOURS[index % len(COLOURS)],
            linestyle=("-", "--", ":")[index // len(COLOURS) % 3],
            marker="o",
            markersize=4,
        )
        grid[1].set(title="Evaluation", ylabel="per cent")
    for axes in grid:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
    grid[-1].set_xlabel("optimiser step")
    grid[-1].xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
    return _save(figure, path)


def _draw(axes: Axes, points: Sequence[tuple[float, float]], **style: Any) -> None:
    # A single point makes no line: show it as a dot.
    if len(points) == 1:
        style["marker"] = "o"
    axes.plot(*zip(*sorted(points), strict=True), **style)


def _list_pairs(axes: Axes, pairs: Sequence[tuple[str, str]], columns: int) -> None:
    axes.axis("off")
    # A short list keeps the line spacing of twelve pairs, rather than spreading over the whole height.
    axes.set(xlim=(0, columns), ylim=(-min(max(len(pairs), 12), PAIRS_PER_COLUMN), 0))
    fonts = [name for name in FONTS if name in font_manager.get_font_names()]
    for index, (source, target) in enumerate(pairs):
        column, row = divmod(index, PAIRS_PER_COLUMN)
        axes.text(column + 0.07, -row - 0.38, str(index + 1), fontsize=9, weight="bold", ha="right", va="center")
        for text, colour, drop in ((source, COLOURS[0], 0.18), (target, COLOURS[1], 0.58)):
            axes.text(
                column + 0.1,
                -row - drop,
                shorten(text),
                color=colour,
                fontsize=8.5,
                va="center",
                family=fonts,
                parse_math=False,
            )


def shorten(text: str, width: int = LABEL_WIDTH) -> str:
    """The text on one line, cut with an ellipsis to so many terminal columns (wide characters take two).

    Example:
        >>> shorten("A  sentence that goes on and on and on", 16)
        'A sentence that…'
        >>> shorten("你好世界", 6)
        '你好…'
    """
    text = " ".join(text.split())
    used = 0
    for index, character in enumerate(text):
        used += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if used > width:
            # Make room for the ellipsis, which takes the place of the last character that fitted.
            return text[: max(index - 1, 0)].rstrip() + "…"
    return text


def _save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    file = Path(path)
    ending = file.suffix.lstrip(".").lower()
    if ending not in figure.canvas.get_supported_filetypes():
        raise XlsrError(f"picture {file} ends in '{file.suffix}'; use .png, .pdf or .svg.")
    file.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(file, dpi=DPI)
    # matplotlib warns once for each character: one sentence says it better.
    glyphs = [warning for warning in caught if str(warning.message).startswith("Glyph")]
    if glyphs:
        logger.warning(
            "%d characters in %s are drawn as boxes; install a font that has them, such as Noto Sans.",
            len(glyphs),
            file,
        )
    for warning in caught:
        if warning not in glyphs:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return file
