"""A report of evaluations as one Markdown file: tables, plots, nearest neighbours, settings."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed
from hf_xlsr.evaluation.inputs import Inputs
from hf_xlsr.evaluation.protocols.tatoeba import encode_pairs
from hf_xlsr.evaluation.report import lower_is_better, metric_unit, metric_value
from hf_xlsr.evaluation.results import AVERAGE, Results, mean_over_languages, metrics_of, table_places
from hf_xlsr.evaluation.rows import both_sides, by_pair, random_rows
from hf_xlsr.mining.search.neighbours import nearest_neighbours
from hf_xlsr.utils.extras import can_plot
from hf_xlsr.utils.files import write_text
from hf_xlsr.utils.markdown_text import escape_markdown, markdown_table

LEGEND = (
    "Shares and error rates are in per cent (%); correlations, F1 and average precision are times 100; counts are whole "
    "numbers. Errors are better when lower. The best of several encoders is bold. A mean is unweighted, over as many "
    "rows as it says."
)
DRAWN_PAIRS = 15
DRAWN_LANGUAGES = 4  # a report of a hundred language pairs should stay readable
QUERIES = 5
WIDEST = 16  # columns; wider tables have one metric below the other

Cells = dict[str, dict[str, dict[str, float]]]  # by row, metric and encoder


@dataclass(frozen=True)
class Neighbour:
    """One sentence near a query: its rank from 1, cosine, and whether it is the query's translation."""

    rank: int
    text: str
    similarity: float
    is_gold: bool = False


@dataclass(frozen=True)
class NeighbourList:
    """A query and its neighbours, nearest first; `missed` is its translation, with its true rank, if not among them."""

    query: str
    neighbours: tuple[Neighbour, ...]
    missed: Neighbour | None = None


def nearest_neighbour_lists(
    encoder: Encoder,
    queries: Sequence[str],
    candidates: Sequence[str],
    *,
    k: int = 5,
    golds: Sequence[str] | None = None,
    languages: tuple[str, str] | None = None,
    **encoding: Unpack[EncodingOptions],
) -> list[NeighbourList]:
    """The `k` nearest of the candidates for each query, by cosine, with the queries' translations `golds` marked.

    The candidates are the distinct sentences of `candidates` and `golds`, as in protocol `xsr`. Ties go to the
    candidate seen first.
    """
    position: dict[str, int] = {}
    for text in (*candidates, *(golds or ())):
        position.setdefault(text, len(position))
    texts = list(position)
    sides = zip((queries, texts), languages or (None, None), strict=True)
    query_vectors, vectors = (embed(encoder, side, language=language, **encoding) for side, language in sides)
    similarities, found = nearest_neighbours(query_vectors, vectors, k)
    lists = []
    wanted: Sequence[str | None] = golds or [None] * len(queries)
    for number, (query, gold) in enumerate(zip(queries, wanted, strict=True)):
        neighbours = tuple(
            Neighbour(rank, texts[index], float(similarity), texts[index] == gold)
            for rank, (index, similarity) in enumerate(zip(found[number], similarities[number], strict=True), start=1)
        )
        missed = None
        if gold is not None and not any(neighbour.is_gold for neighbour in neighbours):
            to_all = vectors @ query_vectors[number]
            own = to_all[position[gold]]
            # Of candidates that are almost tied the search, in float64, may have put another first.
            missed = Neighbour(max(int((to_all > own).sum()), k) + 1, gold, float(own), is_gold=True)
        lists.append(NeighbourList(query, neighbours, missed))
    return lists


def neighbours_markdown(lists: Sequence[NeighbourList]) -> str:
    """A small table for each query; a translation that was not found stands last, with the rank it has."""
    lines = []
    for entry in lists:
        rows = []
        for neighbour in (*entry.neighbours, *([entry.missed] if entry.missed else [])):
            text = escape_markdown(neighbour.text)
            marked = f"**{text}** ✓" if neighbour.is_gold else text
            rows.append([f"{neighbour.rank:,}", f"{neighbour.similarity:.3f}", marked])
        lines += [f"Query: {escape_markdown(entry.query)}", ""]
        lines += [*markdown_table(["rank", "cosine", "sentence"], rows, numbers_from=3), ""]
    note = ["The translation is bold and ticked.", ""] if any("✓" in line for line in lines) else []
    return "\n".join(note + lines)


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


def markdown_report(
    folder: str | os.PathLike[str],
    results: Mapping[str, Mapping[str, Any]],
    *,
    title: str = "Evaluation",
    plots: Mapping[str, str | os.PathLike[str]] | None = None,
    neighbours: Mapping[str, Sequence[NeighbourList]] | None = None,
) -> Path:
    """Writes `report.md`: a table for each protocol and split, encoders side by side, and how it was measured.

    `results` are `Results`, or what `load_results` gave, by the name of the encoder; `plots` are existing pictures and
    `neighbours` from `nearest_neighbour_lists`, by caption. Data hashes are truncated to 16 digits; a sentence names
    those that differ between encoders.
    """
    home = Path(folder)
    means = {label: mean_over_languages(metrics_of(result)) for label, result in results.items()}
    lines = [f"# {escape_markdown(title)}", "", "## Results", "", LEGEND, ""]
    for heading, table in metric_tables(means).items():
        lines += [f"### {escape_markdown(heading)}", "", *table, ""]
    if plots:
        lines += ["## Plots", ""]
        for caption, plot in plots.items():
            target = quote(Path(os.path.relpath(plot, home)).as_posix())
            lines += [f"![{escape_markdown(caption)}]({target})", ""]
    if neighbours:
        lines += ["## Nearest neighbours", ""]
        for caption, lists in neighbours.items():
            lines += [f"### {escape_markdown(caption)}", "", neighbours_markdown(lists)]
    lines += _provenance(results)
    file = home / "report.md"
    home.mkdir(parents=True, exist_ok=True)
    write_text(file, "\n".join(lines).rstrip() + "\n")
    return file


def metric_tables(results: Mapping[str, Results]) -> dict[str, list[str]]:
    """The lines of a table for each protocol and split, encoders side by side, by heading.

    Means are last. The best encoder of a row is bold, by the value as it is shown. A count that is equal for all encoders
    has one column. Where more than 16 columns would be needed, metrics are below each other.

    Examples:
        >>> from hf_xlsr.evaluation.results import measured
        >>> of = {"a": 0.9, "b": 0.95}
        >>> where = "tatoeba", "tatoeba", ("en", "fr"), "test"
        >>> results = {label: measured(*where, {"accuracy": value}) for label, value in of.items()}
        >>> print("\\n".join(metric_tables(results)["tatoeba, test"]))
        |  | a<br>accuracy % | b<br>accuracy % |
        |---|---:|---:|
        | en-fr | 90.0 | **95.0** |
    """
    labelled = [(label, record) for label, of in results.items() for record in of.records.values()]
    places = table_places([record for _, record in labelled])
    tables: dict[str, Cells] = {}
    for label, record in labelled:
        heading, row = places[record.key]
        tables.setdefault(heading, {}).setdefault(row, {}).setdefault(record.metric, {})[label] = record.value
    return {heading: _lines(table, list(results)) for heading, table in tables.items()}


def _lines(table: Cells, encoders: Sequence[str]) -> list[str]:
    rows = sorted(table, key=lambda row: bool(AVERAGE.match(row)))
    names = {row: escape_markdown(row.replace("-", " ") if AVERAGE.match(row) else row) for row in rows}
    measured = {label for cells in table.values() for cell in cells.values() for label in cell}
    labels = [label for label in encoders if label in measured]
    heads: dict[str, str] = {}
    columns = []
    for metric in dict.fromkeys(metric for cells in table.values() for metric in cells):
        values = [list(cells[metric].values()) for cells in table.values() if metric in cells]
        is_count = all(isinstance(value, int) for row in values for value in row)
        unit = "" if is_count else metric_unit(metric)
        heads[metric] = escape_markdown(f"{metric.replace('_', ' ')} {unit}")
        shared = len(encoders) == 1 or (is_count and all(len(set(row)) == 1 for row in values))
        columns += [(metric, label) for label in ([""] if shared else labels)]
    shown = {row: {metric: _shown(metric, table[row].get(metric, {})) for metric in heads} for row in rows}
    lines = []
    if len(columns) > WIDEST:
        for metric, head in heads.items():
            for row in rows:
                if cells := shown[row][metric]:
                    lines.append([head, names[row], *(cells.get(label, "") for label in labels)])
                    head = ""
        return markdown_table(["metric", "", *map(escape_markdown, labels)], lines, numbers_from=2)
    for row in rows:
        texts = [(shown[row][metric], label) for metric, label in columns]
        line = [text.get(label, "") if label else next(iter(text.values()), "") for text, label in texts]
        lines.append([names[row], *line])
    header = [f"{escape_markdown(label)}<br>{heads[metric]}" if label else heads[metric] for metric, label in columns]
    return markdown_table(["", *header], lines)


def _shown(metric: str, values: Mapping[str, float]) -> dict[str, str]:
    """Each encoder's value in a row, the best one bold."""
    texts = {label: metric_value(metric, value) for label, value in values.items()}
    if len(texts) < 2 or not metric_unit(metric) or any(isinstance(value, int) for value in values.values()):
        return texts
    best = min(texts.values(), key=float) if lower_is_better(metric) else max(texts.values(), key=float)
    return {label: f"**{text}**" if text == best else text for label, text in texts.items()}


def _provenance(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Settings, data hashes and versions, where results come from files."""
    full = {label: result for label, result in results.items() if not isinstance(result, Results)}
    if not full:
        return []
    settings = {label: {"created": result["created"], **result["settings"]} for label, result in results.items()}
    lines = ["## How it was measured", ""]
    simple = {label: {k: v for k, v in of.items() if _is_simple(v)} for label, of in settings.items()}
    lines += _side_by_side("setting", simple)
    for label, of in settings.items():
        for name in (name for name, value in of.items() if not _is_simple(value)):
            content = json.dumps(of[name], indent=2, ensure_ascii=False, default=str)
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", content)), default=0))
            summary = f"<summary>{html.escape(f'{label}: {name}')}</summary>"
            lines += ["<details>", summary, "", f"{fence}json", content, fence, "", "</details>", ""]
    hashes = {
        label: {name: str(value)[:16] for name, value in result["data_sha256"].items()}
        for label, result in full.items()
    }
    lines += _side_by_side("SHA-256 of the data", hashes)
    names = dict.fromkeys(name for of in hashes.values() for name in of)
    if differing := [name for name in names if len({of[name] for of in hashes.values() if name in of}) > 1]:
        shown = ", ".join(map(escape_markdown, differing))
        lines += [f"**The encoders were not measured on the same data:** {shown} differs between them.", ""]
    return lines + _side_by_side("version", {label: result["versions"] for label, result in full.items()})


def _is_simple(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) <= 16 and all(_is_simple(item) and not isinstance(item, (list, tuple)) for item in value)
    return not isinstance(value, Mapping)


def _side_by_side(head: str, columns: Mapping[str, Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [[escape_markdown(name), *(_plain(column.get(name)) for column in columns.values())] for name in names]
    header = [head, *map(escape_markdown, columns)]
    return [*markdown_table(header, rows, numbers_from=len(header)), ""] if rows else []


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return escape_markdown(", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))
