"""Colours, fonts, labels and reproducible files of all pictures."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from matplotlib import font_manager, rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text
from rich.cells import cell_len, set_cell_size

from hf_xlsr.utils.files import atomic_write
from hf_xlsr.utils.printable import printable, printable_line

DPI = 150
# The first six are distinct for colour-blind readers too (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f")
# matplotlib takes a glyph from the first font that has it.
NOTO = ("CJK SC", "CJK JP", "Arabic", "Devanagari", "Thai")
FONTS = ("DejaVu Sans", *(f"Noto Sans {script}" for script in NOTO), "Arial Unicode MS", "Microsoft YaHei")
PERPLEXITY = 30.0  # of t-SNE: about the number of neighbours that count
ROUNDING = 1e-6  # differences below this share of the largest number are rounding
# A date would make each file different.
UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


# Decorator of functions that draw: fonts for every script, and `$` starts no formula.
styled = rc_context(
    {
        "font.family": [name for name in FONTS if name in font_manager.get_font_names()],
        "text.parse_math": False,
        "legend.frameon": False,
        "svg.hashsalt": "hf-xlsr",
    }
)


def shorten(text: str, width: int) -> str:
    """The text on one line, truncated with an ellipsis to a width in terminal columns (wide characters take two)."""
    line = printable_line(text)
    if cell_len(line) <= width:
        return line
    return set_cell_size(line, width - 1).rstrip() + "…"


def on_plane(vectors: np.ndarray, seed: int) -> np.ndarray:
    """Positions of `n` vectors on a plane, `(n, 2)`, those of high cosine near each other (t-SNE)."""
    from sklearn.manifold import TSNE

    # Equal vectors, as a collapsed encoder gives them: scikit-learn crashes the process.
    spread = np.ptp(vectors, axis=0).max()
    if spread <= ROUNDING * np.abs(vectors).max():
        return np.zeros((len(vectors), 2))
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)  # below the number of points
    tsne = TSNE(
        2,
        perplexity=perplexity,
        metric="cosine",
        random_state=seed,
    )
    return np.asarray(tsne.fit_transform(vectors))


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Writes a figure in the format of the suffix."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    metadata = UNDATED.get(file.suffix.lower())
    for text in figure.findobj(Text):  # all but the names of ticks, which axes write anew
        text.set_text(printable(text.get_text()))
    with atomic_write(file) as partial:
        figure.savefig(partial, dpi=DPI, metadata=metadata, format=file.suffix.removeprefix(".") or None)
    return file
