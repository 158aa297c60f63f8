"""The report of one `hf-xlsr evaluate` as a Markdown file: tables, plots, nearest neighbours, settings."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed
from hf_xlsr.evaluation.inputs import Inputs
from hf_xlsr.evaluation.protocols.tatoeba import encode_pairs
from hf_xlsr.evaluation.report import metric_unit, metric_value
from hf_xlsr.evaluation.results import AVERAGE, Results, mean_over_languages, table_places
from hf_xlsr.evaluation.rows import both_sides, by_pair, random_rows
from hf_xlsr.mining.search.neighbours import nearest_neighbours
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
WIDEST = 16  # columns; wider tables have one metric below the other


class Neighbour(NamedTuple):
    """One sentence near a query: its rank from 1, cosine, and whether it is the query's translation."""

    rank: int
    text: str
    similarity: float
    is_gold: bool = False


def nearest_neighbour_lists(
    encoder: Encoder,
    queries: Sequence[str],
    candidates: Sequence[str],
    golds: Sequence[str],
    *,
    languages: tuple[str, str],
    k: int = 5,
    **encoding: Unpack[EncodingOptions],
) -> list[list[Neighbour]]:
    """For each query the `k` nearest candidates by cosine, and its translation, one of `golds`, if not among them.

    The candidates are the distinct sentences of `candidates` and `golds`, as in protocol `xsr`. Ties go to the
    candidate seen first.
    """
    texts = list(dict.fromkeys((*candidates, *golds)))
    query_vectors, vectors = (
        embed(encoder, side, language=language, **encoding)
        for side, language in zip((queries, texts), languages, strict=True)
    )
    similarities, found = nearest_neighbours(query_vectors, vectors, k)
    lists = []
    for number, gold in enumerate(golds):
        neighbours = [
            Neighbour(rank, texts[index], float(similarity), texts[index] == gold)
            for rank, (index, similarity) in enumerate(zip(found[number], similarities[number], strict=True), start=1)
        ]
        if not any(neighbour.is_gold for neighbour in neighbours):
            to_all = vectors @ query_vectors[number]
            own = to_all[texts.index(gold)]
            # Of candidates that are almost tied the search, in float64, may have put another first.
            neighbours.append(Neighbour(max(int((to_all > own).sum()), k) + 1, gold, float(own), is_gold=True))
        lists.append(neighbours)
    return lists


def neighbours_markdown(lists: Iterable[tuple[str, Sequence[Neighbour]]]) -> str:
    """A small table for each query."""
    lines = []
    for query, neighbours in lists:
        rows = []
        for neighbour in neighbours:
            text = escape_markdown(neighbour.text)
            marked = f"**{text}** ✓" if neighbour.is_gold else text
            rows.append([f"{neighbour.rank:,}", f"{neighbour.similarity:.3f}", marked])
        lines += [f"Query: {escape_markdown(query)}", ""]
        lines += [*markdown_table(["rank", "cosine", "sentence"], rows, numbers_from=3), ""]
    return "\n".join(["The translation is bold and ticked.", "", *lines])


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

            sources, targets = both_sides(chosen)
            first, second = encode_pairs(encoder, sources, targets, languages, **inputs.encoding)
            for kind, stem, draw in (("t-SNE", "tsne", plot_tsne), ("Cosines", "cosines", plot_heatmap)):
                plots[f"{kind} of translation pairs, {code}"] = draw(
                    home / f"{stem}-{code}.png", first, second, sources, targets, languages, seed=seed
                )
        queries, golds = both_sides(random_rows(group, QUERIES, seed))
        candidates = [row["target"] for row in group]
        lists = nearest_neighbour_lists(encoder, queries, candidates, golds, languages=languages, **inputs.encoding)
        caption = f"{code}, among {len(set(candidates)):,} sentences"
        neighbours[caption] = neighbours_markdown(zip(queries, lists, strict=True))
    compared = {record.languages for record in results["metrics"].records.values()}
    if pairs and len(compared) > 1 and can_plot():
        from hf_xlsr.evaluation.plots import plot_retrieval

        plots["Retrieval by language"] = plot_retrieval(home / "retrieval.png", {label: results})
    lines = [f"# {escape_markdown(f'{label} on {inputs.name}')}", "", "## Results", "", LEGEND, ""]
    for heading, table in metric_tables(mean_over_languages(results["metrics"]), label).items():
        lines += [f"### {escape_markdown(heading)}", "", *table, ""]
    if plots:
        lines += ["## Plots", ""]
        for caption, plot in plots.items():
            lines += [f"![{escape_markdown(caption)}]({quote(plot.name)})", ""]
    if neighbours:
        lines += ["## Nearest neighbours", ""]
        for caption, listed in neighbours.items():
            lines += [f"### {escape_markdown(caption)}", "", listed]
    lines += provenance(results, label)
    write_text(home / "report.md", "\n".join(lines).rstrip() + "\n")


def metric_tables(results: Results, label: str) -> dict[str, list[str]]:
    """The lines of a table for each protocol and split, by heading; means are last.

    Where more than 16 columns would be needed, metrics are below each other.

    Examples:
        >>> from hf_xlsr.evaluation.results import measured
        >>> results = measured("tatoeba", "tatoeba", ("en", "fr"), "test", {"accuracy": 0.9, "pairs": 1000})
        >>> print("\\n".join(metric_tables(results, "e5")["tatoeba, test"]))
        |  | accuracy % | pairs |
        |---|---:|---:|
        | en-fr | 90.0 | 1000 |
    """
    records = list(results.records.values())
    places = table_places(records)
    tables: dict[str, dict[str, dict[str, float]]] = {}
    for record in records:
        heading, row = places[record.key]
        tables.setdefault(heading, {}).setdefault(row, {})[record.metric] = record.value
    return {heading: _lines(table, label) for heading, table in tables.items()}


def _lines(table: Mapping[str, Mapping[str, float]], label: str) -> list[str]:
    rows = sorted(table, key=lambda row: bool(AVERAGE.match(row)))
    names = {row: escape_markdown(row.replace("-", " ") if AVERAGE.match(row) else row) for row in rows}
    heads = {}
    for metric in dict.fromkeys(metric for cells in table.values() for metric in cells):
        is_count = all(isinstance(cells[metric], int) for cells in table.values() if metric in cells)
        heads[metric] = escape_markdown(f"{metric.replace('_', ' ')} {'' if is_count else metric_unit(metric)}")
    shown = {row: {metric: metric_value(metric, value) for metric, value in table[row].items()} for row in rows}
    if len(heads) <= WIDEST:
        lines = [[names[row], *(shown[row].get(metric, "") for metric in heads)] for row in rows]
        return markdown_table(["", *heads.values()], lines)
    lines = []
    for metric, head in heads.items():
        for row in rows:
            if metric in shown[row]:
                lines.append([head, names[row], shown[row][metric]])
                head = ""
    return markdown_table(["metric", "", escape_markdown(label)], lines, numbers_from=2)


def provenance(results: Mapping[str, Any], label: str) -> list[str]:
    """Settings, data hashes, truncated to 16 digits, and versions."""
    settings = {"created": results["created"], **results["settings"]}
    lines = ["## How it was measured", ""]
    lines += _two_columns("setting", label, {name: value for name, value in settings.items() if _is_simple(value)})
    for name in (name for name, value in settings.items() if not _is_simple(value)):
        content = json.dumps(settings[name], indent=2, ensure_ascii=False, default=str)
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", content)), default=0))
        summary = f"<summary>{html.escape(f'{label}: {name}')}</summary>"
        lines += ["<details>", summary, "", f"{fence}json", content, fence, "", "</details>", ""]
    hashes = {name: str(value)[:16] for name, value in results["data_sha256"].items()}
    lines += _two_columns("SHA-256 of the data", label, hashes)
    return lines + _two_columns("version", label, results["versions"])


def _is_simple(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) <= 16 and all(_is_simple(item) and not isinstance(item, (list, tuple)) for item in value)
    return not isinstance(value, Mapping)


def _two_columns(head: str, label: str, values: Mapping[str, Any]) -> list[str]:
    rows = [[escape_markdown(name), _plain(value)] for name, value in values.items()]
    return [*markdown_table([head, escape_markdown(label)], rows, numbers_from=2), ""] if rows else []


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return escape_markdown(", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))
