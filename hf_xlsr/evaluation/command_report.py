"""The report of one `hf-xlsr evaluate`: its results, and plots of translation pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_xlsr.encoders.encoding import Encoder
from hf_xlsr.evaluation.inputs import Inputs
from hf_xlsr.evaluation.markdown_report import markdown_report
from hf_xlsr.evaluation.protocols.tatoeba import encode_pairs
from hf_xlsr.evaluation.retrieval_lists import NeighbourList, nearest_neighbour_lists
from hf_xlsr.evaluation.rows import AnyRow, both_sides, by_pair
from hf_xlsr.utils.extras import can_plot

DRAWN_PAIRS = 15
DRAWN_LANGUAGES = 4  # a report of a hundred language pairs should stay readable
QUERIES = 5


def write_report(
    folder: str, label: str, results: Mapping[str, Any], inputs: Inputs, encoder: Encoder, *, seed: int = 1
) -> Path:
    """Writes `report.md` and its plots.

    Translation pairs of the first four language pairs are drawn, 15 random pairs of each, and the nearest neighbours of
    5 random sources are listed. Without matplotlib, plots are skipped with a warning.
    """
    home = Path(folder)
    plots: dict[str, Path] = {}
    neighbours: dict[str, list[NeighbourList]] = {}
    rows = next(iter(inputs.rows.values()), [])
    pairs = by_pair(rows) if rows and "source_lang" in rows[0] else {}
    for languages, group in list(pairs.items())[:DRAWN_LANGUAGES]:
        code = "-".join(languages)
        chosen = random_rows(group, DRAWN_PAIRS, seed)
        if len(chosen) > 1 and can_plot():
            from hf_xlsr.evaluation.plots import plot_heatmap, plot_tsne

            sources, targets = both_sides(chosen)
            first, second = encode_pairs(encoder, sources, targets, languages, **inputs.encoding)
            for kind, stem, draw in (("t-SNE", "tsne", plot_tsne), ("Cosines", "cosines", plot_heatmap)):
                plots[f"{kind} of translation pairs, {code}"] = draw(
                    home / f"{stem}-{code}.png", first, second, sources, targets, languages, seed=seed
                )
        asked = random_rows(group, QUERIES, seed)
        neighbours[f"{code}, among {len({row['target'] for row in group}):,} sentences"] = nearest_neighbour_lists(
            encoder,
            [row["source"] for row in asked],
            [row["target"] for row in group],
            golds=[row["target"] for row in asked],
            languages=languages,
            **inputs.encoding,
        )
    compared = {record.languages for record in results["metrics"].records.values()}
    if pairs and len(compared) > 1 and can_plot():
        from hf_xlsr.evaluation.plots import plot_retrieval

        plots["Retrieval by language"] = plot_retrieval(home / "retrieval.png", {label: results})
    return markdown_report(
        home, {label: results}, title=f"{label} on {inputs.name}", plots=plots, neighbours=neighbours
    )


def random_rows(rows: Sequence[AnyRow], count: int, seed: int) -> list[AnyRow]:
    """A random subset of rows, in their order; all when there are fewer."""
    order = np.random.default_rng(seed).choice(len(rows), min(count, len(rows)), replace=False)
    return [rows[place] for place in np.sort(order)]
