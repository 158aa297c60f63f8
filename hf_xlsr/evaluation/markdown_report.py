"""The report of one `hf-xlsr evaluate` as a Markdown file: results, plots, nearest neighbours, settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any
from urllib.parse import quote

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed
from hf_xlsr.evaluation.inputs import Inputs
from hf_xlsr.evaluation.protocols.tatoeba import encode_pairs
from hf_xlsr.evaluation.report import HEADER, result_rows
from hf_xlsr.evaluation.rows import both_sides, by_pair, random_rows
from hf_xlsr.utils.extras import can_plot
from hf_xlsr.utils.files import write_text
from hf_xlsr.utils.markdown import escape_markdown, markdown_table

LEGEND = (
    "Shares and error rates are in per cent (%); correlations, F1 and average precision are times 100; counts are whole "
    "numbers. Errors are better when lower. A mean is unweighted, over as many rows as it says."
)
DRAWN_PAIRS = 15
DRAWN_LANGUAGES = 4  # a report of a hundred language pairs should stay readable
QUERIES = 5


def write_report(
    folder: str, label: str, results: Mapping[str, Any], inputs: Inputs, encoder: Encoder, *, seed: int = 1
) -> None:
    """Writes `report.md` and its plots; `results` are what `load_results` gave.

    Translation pairs of the first four language pairs are drawn, 15 random pairs of each, and the nearest neighbours of
    5 random sources are listed. Without matplotlib, plots are skipped with a warning.
    """
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    plots: dict[str, Path] = {}
    neighbours: dict[str, str] = {}
    rows = next(iter(inputs.rows.values()), [])
    pairs = by_pair(rows) if rows and "source_lang" in rows[0] else {}
    for languages, group in list(pairs.items())[:DRAWN_LANGUAGES]:
        code = "-".join(languages)
        chosen = random_rows(group, DRAWN_PAIRS, seed)
        if len(chosen) > 1 and can_plot():
            from hf_xlsr.evaluation.plots import plot_heatmap, plot_tsne

            sides = both_sides(chosen)
            drawn = (*encode_pairs(encoder, *sides, languages, **inputs.encoding), *sides, languages)
            plots[f"t-SNE of translation pairs, {code}"] = plot_tsne(home / f"tsne-{code}.png", *drawn, seed=seed)
            plots[f"Cosines of translation pairs, {code}"] = plot_heatmap(home / f"cosines-{code}.png", *drawn)
        queries, golds = both_sides(random_rows(group, QUERIES, seed))
        candidates = list(dict.fromkeys(row["target"] for row in group))
        listed = neighbours_markdown(encoder, queries, golds, candidates, languages=languages, **inputs.encoding)
        neighbours[f"{code}, among {len(candidates):,} sentences"] = listed
    if pairs and can_plot():
        from hf_xlsr.evaluation.plots import plot_retrieval

        plots["Results by language"] = plot_retrieval(home / "retrieval.png", {label: results})
    cells = [[escape_markdown(cell) for cell in row] for row in result_rows(results["metrics"])]
    lines = [f"# {escape_markdown(f'{label} on {inputs.name}')}", "", "## Results", "", LEGEND, ""]
    lines += [*markdown_table(HEADER, cells, numbers_from=4), ""]
    lines += ["## Plots", ""] if plots else []
    for caption, plot in plots.items():
        lines += [f"![{escape_markdown(caption)}]({quote(plot.name)})", ""]
    lines += ["## Nearest neighbours", "", "The translation is bold and ticked.", ""] if neighbours else []
    for caption, listed in neighbours.items():
        lines += [f"### {escape_markdown(caption)}", "", listed]
    facts = {name: value for name, value in results.items() if name != "metrics"}
    lines += ["## How it was measured", "", indent(json.dumps(facts, indent=2, ensure_ascii=False), "    ")]
    write_text(home / "report.md", "\n".join(lines) + "\n")


def neighbours_markdown(
    encoder: Encoder,
    queries: Sequence[str],
    golds: Sequence[str],
    candidates: Sequence[str],
    *,
    languages: tuple[str, str],
    k: int = 5,
    **encoding: Unpack[EncodingOptions],
) -> str:
    """A table for each query: the `k` nearest candidates by cosine, and its translation, which is one of them."""
    query_vectors, vectors = (
        embed(encoder, side, language=language, **encoding)
        for side, language in zip((queries, candidates), languages, strict=True)
    )
    lines = []
    for query, gold, cosines in zip(queries, golds, query_vectors @ vectors.T, strict=True):
        ranked = np.argsort(-cosines, kind="stable").tolist()
        own = candidates.index(gold)
        rows = []
        for place in dict.fromkeys((*ranked[:k], own)):
            text = escape_markdown(candidates[place])
            shown = f"**{text}** ✓" if place == own else text
            rows.append([f"{ranked.index(place) + 1:,}", f"{cosines[place]:.3f}", shown])
        lines += [f"Query: {escape_markdown(query)}", ""]
        lines += [*markdown_table(["rank", "cosine", "sentence"], rows, numbers_from=3), ""]
    return "\n".join(lines)
