"""Draws docs/images/architecture.svg: how data flows through the package.

`python docs/images/architecture.py [FILE.svg|FILE.png]`
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch  # noqa: E402

INK, QUIET = "#1f2933", "#52606d"
ROOM, METHOD, OUTSIDE, PRODUCT = "#e3edf7", "#fdf3dc", "#f5f5f4", "#e2f2e6"
EDGE = {ROOM: "#6b93bd", METHOD: "#d1a54a", OUTSIDE: "#a8a29e", PRODUCT: "#6aa97b"}

# Left, bottom, width, height, colour, name, lines below it with | between.
BOXES = [
    (
        0.0,
        4.0,
        2.0,
        2.4,
        OUTSIDE,
        "texts",
        "pairs, running text,|labelled rows: files,|named corpora,|the Hub",
    ),
    (2.6, 4.0, 2.2, 2.4, ROOM, "data", "read, clean, keep|test text out,|tokenise, mix,|mask, collate"),
    (
        5.4,
        4.0,
        2.2,
        2.4,
        ROOM,
        "trainers",
        "batches, schedules,|queues, stages,|exact resume;|transformers.Trainer",
    ),
    (12.6, 4.0, 2.0, 2.4, ROOM, "losses", "functions of|tensors, one|for each equation,|held in chunks"),
    (
        5.4,
        0.2,
        2.2,
        2.4,
        ROOM,
        "export",
        "folder of sentence-|transformers, ONNX,|model card,|results, plots",
    ),
    (8.4, 0.3, 1.9, 2.0, PRODUCT, "evaluation", "named protocols,|mteb, reports,|plots"),
    (10.45, 0.3, 1.9, 2.0, PRODUCT, "mining", "translations out of|raw text, within a|memory budget"),
    (12.5, 0.3, 1.9, 2.0, PRODUCT, "Hub", "your code, with|or without|this package"),
]
METHODS = [
    ("lightweight dual transformer", "two layers; predicts the translation"),
    ("dual momentum contrast", "two encoders, slow copies, queues"),
    ("HICTL", "contrast of sentences and of words, TLM"),
    ("CMLM", "a sentence helps fill in the next one"),
]


def box(axes: Any, left: float, bottom: float, width: float, height: float, colour: str) -> None:
    style = "round,pad=0,rounding_size=0.12"
    axes.add_patch(
        FancyBboxPatch((left, bottom), width, height, boxstyle=style, facecolor=colour, edgecolor=EDGE[colour], lw=1.3)
    )


def arrow(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=15, color=QUIET, lw=1.6, zorder=5))


def draw(path: str | Path) -> Path:
    """Draws the picture.

    Args:
        path: Ends in `.svg` or `.png`.
    """
    plt.rcParams["svg.hashsalt"] = "hf-xlsr"  # the same file from the same code
    figure, axes = plt.subplots(figsize=(14, 6.6))
    axes.set_xlim(-0.15, 14.75)
    axes.set_ylim(-0.1, 7.0)
    axes.axis("off")
    box(axes, 8.2, 0.2, 6.4, 2.75, OUTSIDE)
    axes.text(11.4, 2.62, "take anything that encodes sentences", ha="center", va="center", fontsize=9.6, color=QUIET)
    for left, bottom, width, height, colour, name, lines in BOXES:
        box(axes, left, bottom, width, height, colour)
        middle, top = left + width / 2, bottom + height
        axes.text(middle, top - 0.36, name, ha="center", va="center", fontsize=13, weight="bold", color=INK)
        for number, line in enumerate(lines.split("|")):
            axes.text(middle, top - 0.86 - 0.4 * number, line, ha="center", va="center", fontsize=9.6, color=QUIET)
    box(axes, 8.2, 3.3, 3.8, 3.6, ROOM)
    axes.text(10.1, 6.6, "modeling", ha="center", va="center", fontsize=13, weight="bold", color=INK)
    for number, (name, line) in enumerate(METHODS):
        bottom = 5.64 - 0.75 * number
        box(axes, 8.35, bottom, 3.5, 0.66, METHOD)
        axes.text(10.1, bottom + 0.45, name, ha="center", va="center", fontsize=9.8, weight="bold", color=INK)
        axes.text(10.1, bottom + 0.19, line, ha="center", va="center", fontsize=8.4, color=QUIET)
    for start, end in ((2.0, 2.6), (4.8, 5.4), (7.6, 8.2), (12.0, 12.6)):
        arrow(axes, (start + 0.06, 5.2), (end - 0.06, 5.2))
    arrow(axes, (6.5, 3.94), (6.5, 2.66))
    arrow(axes, (7.66, 1.4), (8.14, 1.4))
    metadata = {"Date": None} if Path(path).suffix == ".svg" else None
    figure.savefig(path, bbox_inches="tight", pad_inches=0.05, dpi=100, metadata=metadata)
    plt.close(figure)
    return Path(path)


if __name__ == "__main__":
    print(draw(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_suffix(".svg")))
