"""Draws docs/images/across.svg from docs/figures.json: encoders that were trained for equal time, with their seeds.

usage: python -m docs.images.across
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from benchmarks.papers.figures import Figures
from benchmarks.papers.tables import ROOT, read_tables

ROWS = {"e5-small": "start", "mnrl": "MultipleNegatives-\nRankingLoss", "moco": "dual momentum\ncontrast (ours)"}
COLUMNS = {"Tatoeba": "Translation retrieval, Tatoeba, %", "BUCC-like F1": "Bitext mining, news, F1 %"}
COLOURS = ("#9ca3af", "#d97706", "#2563eb")


def main() -> None:
    """Writes the picture."""
    (table,) = (one for one in read_tables(ROOT / "benchmarks/papers/tables.yaml").tables if one.name == "across")
    spreads = Figures(ROOT / "docs/figures.json").spreads(table)
    matplotlib.rcParams |= {"svg.hashsalt": "across", "font.size": 10, "svg.fonttype": "path"}
    picture = Figure(figsize=(8.4, 2.6), facecolor="white")
    axes = picture.subplots(1, 2)
    for axis, (column, title) in zip(axes, COLUMNS.items(), strict=True):
        for place, row in enumerate(reversed(ROWS)):
            spread = spreads[column][row]
            error = [[spread.mean - spread.low], [spread.high - spread.mean]]
            axis.errorbar(spread.mean, place, xerr=error, fmt="o", markersize=9, color=COLOURS[::-1][place], capsize=4)
            axis.text(spread.high + 0.25, place, f"{spread.mean:.1f}", va="center")
        lowest = min(spreads[column][row].low for row in ROWS)
        axis.set(title=title, xlim=(lowest - 1, max(spreads[column][row].high for row in ROWS) + 1.6))
        axis.set_yticks(range(len(ROWS)), list(ROWS.values())[::-1])
        axis.set_ylim(-0.6, len(ROWS) - 0.4)
        axis.grid(axis="x", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[1].set_yticklabels([])
    picture.tight_layout()
    picture.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
