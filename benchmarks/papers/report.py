"""The comparisons as Markdown and plots: tables with the spread of the seeds, and a verdict for each claim."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.papers.figures import Figures, Spread
from benchmarks.papers.settings import (
    Papers,
    PaperTable,
    Setting,
    by_method,
    is_literal,
    read_papers,
    resolved_rows,
    setting_rows,
    steps_of,
)
from benchmarks.papers.tables import SEEDS, Book, Table
from benchmarks.papers.verdicts import Finding, Spreads, findings
from hf_xlsr.runs.methods import Method
from hf_xlsr.utils.markdown import escape_markdown, markdown_table

BEGIN = "<!-- papers -->"
END = "<!-- /papers -->"
SETTINGS_BEGIN = "<!-- settings -->"
SETTINGS_END = "<!-- /settings -->"
TABLES_BEGIN = "<!-- tables -->"
TABLES_END = "<!-- /tables -->"
TABLES_HEADER = ("paper", "there", "compares", "at the paper's size", "small run", "literal", "verdicts", "seeds")
SETTINGS_HEADER = ("setting", "the paper says", "this run")
NOT_RUN = "not run"
HEADER = ("comparison", "claim", "measure", "first", "second", "verdict")


def figure(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return "-"
    mean, low, high = (f"{value:,.{digits}f}" for value in (spread.mean, spread.low, spread.high))
    return mean if low == high else f"{mean} ({low}-{high})"


def table_lines(table: Table, spreads: Spreads, trained: Mapping[str, Any], settings: Sequence[str]) -> list[str]:
    """Page of a table; `trained` comes from `Figures.trained`, `settings` are the lines of what was run."""
    rows = [row for row in table.rows if not row.hidden]
    several: list[str] = []
    body: list[list[str]] = []
    for row in rows:
        label = escape_markdown(row.title)
        found = [spreads[column.title].get(row.name) for column in table.columns]
        if not any(found):
            body.append([label, NOT_RUN, *[""] * (len(table.columns) - 1)])
            continue
        count = max((spread.count for spread in found if spread), default=0)
        if count > 1:
            several.append(f"{label} ({count})")
        cells = [figure(spread, column.digits) for spread, column in zip(found, table.columns, strict=True)]
        fewer = [f"; of {spread.count}" if spread and spread.count < count else "" for spread in found]
        body.append([label, *map("".join, zip(cells, fewer, strict=True))])
    command = f"`python -m benchmarks.papers --only {table.name}`"
    text = [f"{command}. All rows have equal {table.equal}{table.but and ', but '}{table.but}."]
    if several:
        trained_rows = [row for row in rows if row.name in measured_rows(table, spreads) and not row.encoder]
        others = "; the others have seed 1" if len(several) < len(trained_rows) else ""
        text.append(f"Rows with several seeds: {', '.join(several)}{others}.")
    if trained["trainings"]:
        minutes = f"{trained['seconds'] / 60:.0f} minutes in all"
        where, threads = " and ".join(trained["hardware"]), " or ".join(map(str, trained["threads"]))
        text.append(f"{trained['trainings']} trainings, {minutes}, on {where}, {threads} thread(s) each.")
    header = [" ", *(escape_markdown(column.title) for column in table.columns)]
    lines = [f"# {escape_markdown(table.title)}", "", table.paper, "", *settings]
    lines += [*markdown_table(header, body), ""]
    if table.claims:
        text.append("Verdicts: [results](../results.md#what-the-papers-claim-at-this-size).")
    return [*lines, *([table.note, ""] if table.note else []), " ".join(text), ""]


def measured_rows(table: Table, spreads: Spreads) -> set[str]:
    """Names of the rows with figures that a page shows."""
    names = {name for values in spreads.values() for name in values}
    return {row.name for row in table.rows if row.name in names and not row.hidden}


def settings_lines(settings: Sequence[Setting], methods: Collection[Method]) -> list[str]:
    """What the paper says and what trainings have, by their recipes; in bold what differs."""
    rows = []
    for *texts, differs in setting_rows(settings, methods):
        what, paper, run = map(escape_markdown, texts)
        rows.append([what, paper, f"**{run}**" if differs else run])
    literal = "The loss, the head, the weights and the optimiser are the paper's, or vary around the paper's value."
    if not is_literal(settings, methods):
        literal = "In bold: not the paper's value. So the run is not literal."
    return [*markdown_table(SETTINGS_HEADER, rows, numbers_from=3), "", literal, ""]


def claim_cells(finding: Finding) -> list[str]:
    """A claim, what was measured, the two figures, and the verdict."""
    sides = zip((finding.better, finding.worse), finding.digits, finding.trained, strict=True)
    return [finding.text, escape_markdown(finding.measure), *(_with_seeds(*side) for side in sides), finding.verdict]


def _with_seeds(spread: Spread | None, digits: int, trained: bool) -> str:
    """A figure of a claim, with the number of its seeds where a training has fewer than a verdict needs."""
    text = figure(spread, digits)
    if spread is None or spread.count >= SEEDS or not trained:
        return text
    return f"{text}, {spread.count} seed{'s' if spread.count > 1 else ''}"


def draw(table: Table, spreads: Spreads, path: Path) -> None:
    """Plots the columns that differ over the table's axis, with the range of the seeds."""
    from matplotlib.figure import Figure

    places = sorted((row.x, row.name) for row in table.rows if row.x is not None)
    curves: dict[str, list[tuple[float, Spread]]] = {}
    for column in (column for column in table.columns if not column.metric.startswith("settings:")):
        values = spreads[column.title]
        points = [(x, values[name]) for x, name in places if name in values]
        if len({spread.mean for _, spread in points}) > 1:
            curves[column.title] = points
    if not curves:
        return
    picture = Figure(figsize=(3.4 * len(curves), 3.0))
    axes = picture.subplots(1, len(curves), squeeze=False)
    for axis, (title, points) in zip(axes[0], curves.items(), strict=True):
        across = [x for x, _ in points]
        means = [spread.mean for _, spread in points]
        ranges = [[s.mean - s.low for _, s in points], [s.high - s.mean for _, s in points]]
        line = axis.errorbar(across, means, yerr=ranges, capsize=3)
        for x, spread in points:
            filled = line[0].get_color() if spread.count > 1 else "white"
            axis.plot(x, spread.mean, "o", color=line[0].get_color(), markerfacecolor=filled)
        if min(across) > 0 and max(across) >= 4 * min(across):
            axis.set_xscale("log", base=2)
            axis.minorticks_off()
        axis.set_xticks(across, [f"{x:,g}" for x in across], rotation=30)
        axis.set(title=title, xlabel=table.axis)
        axis.grid(alpha=0.3)
    picture.tight_layout()
    picture.savefig(path, dpi=110, metadata={"Software": None})


def picture_of(table: Table, images: Path, kind: str = "") -> Path:
    return images / f"papers_{table.name}{kind and '_'}{kind}.png"


@dataclass(frozen=True)
class Summary:
    """What the list of all tables says of a small run."""

    link: str
    literal: bool
    seeds: frozenset[int]
    findings: tuple[Finding, ...]


def tables_cells(papers: Papers, summaries: Mapping[str, Summary]) -> Iterator[list[str]]:
    """Every table and figure of the papers: recipes, small runs, whether they are literal, verdicts and seeds."""
    for item in papers.tables:
        small = [summaries[name] for name in item.small if name in summaries]
        links = " and ".join(summary.link for summary in small)
        literal = " and ".join(dict.fromkeys("yes" if summary.literal else "no" for summary in small))
        seeds = sorted(set().union(*(summary.seeds for summary in small)))
        said = Counter(
            finding.verdict for summary in small for finding in summary.findings if _speaks_of(finding, item)
        )
        verdicts = [f"{count} x {verdict}" if count > 1 else verdict for verdict, count in said.items()]
        yield [
            item.paper,
            item.what,
            item.about,
            ", ".join(f"`{name}`" for name in item.full),
            "; ".join(filter(None, [links, item.note])) or NOT_RUN,
            literal or "-",
            "; ".join(verdicts) or "-",
            " to ".join(map(str, dict.fromkeys([*seeds[:1], *seeds[-1:]]))) or "-",
        ]


def _speaks_of(finding: Finding, item: PaperTable) -> bool:
    """Whether a claim is one of a table or figure of a paper."""
    return re.search(rf"\b{re.escape(item.what)}\b", finding.text) is not None


def write_report(book: Book, kept: Figures, docs: Path) -> None:
    """Writes a page for each table with two rows or more, draws its plot, and puts all claims into `results.md`."""
    papers = read_papers()
    claims: list[list[str]] = []
    summaries: dict[str, Summary] = {}
    for table in book.tables:
        spreads = kept.spreads(table)
        measured = {name for values in spreads.values() for name in values}
        if len(measured) < 2 or measured <= {row.name for row in table.rows if row.encoder}:
            continue
        methods = resolved_rows(table)
        shown = measured_rows(table, spreads)
        run = [method for name, method in methods.items() if name in shown]
        settings = papers.settings.get(table.method, ())
        groups = {table.method: run} if table.method else by_method(run)
        lines_of_settings = []
        for name, group in groups.items():
            lines_of_settings += [f"**{name}**", ""] if len(groups) > 1 else []
            lines_of_settings += settings_lines(papers.settings[name], group)
        lines = table_lines(table, spreads, kept.trained(table), lines_of_settings)
        captions = {"": table.title}
        if table.axis:
            draw(table, spreads, picture_of(table, docs / "images"))
        if table.tsne:
            captions["tsne"] = f"{table.title}: translations of {table.row(table.tsne).title}"
        captions |= {picture.kind: f"{table.title}: {picture.caption}" for picture in table.pictures}
        for kind, caption in captions.items():
            file = picture_of(table, docs / "images", kind)
            if file.is_file():
                lines += [f"![{escape_markdown(caption)}](../images/{file.name})", ""]
        (docs / "results" / f"{table.name}.md").write_text("\n".join(lines).rstrip() + "\n", "utf-8")
        link = f"[{escape_markdown(table.title)}](results/{table.name}.md)"
        found = tuple(findings(table, spreads, steps_of(methods)))
        claims += [[link, *claim_cells(finding)] for finding in found]
        seeds = {spread.count for values in spreads.values() for name, spread in values.items() if name in shown}
        summaries[table.name] = Summary(link, is_literal(settings, run), frozenset(seeds), found)
    page = docs / "results.md"
    text = _between(page.read_text("utf-8"), BEGIN, END, markdown_table(HEADER, claims, numbers_from=6))
    if TABLES_BEGIN in text:
        cells = tables_cells(papers, summaries)
        text = _between(text, TABLES_BEGIN, TABLES_END, markdown_table(TABLES_HEADER, cells, numbers_from=8))
    page.write_text(text, "utf-8")
    for name, written_page in papers.pages.items():
        file = docs / "results" / f"{name}.md"
        if file.is_file():
            lines = settings_lines(papers.settings[written_page.method], written_page.methods())
            text = _between(file.read_text("utf-8"), SETTINGS_BEGIN, SETTINGS_END, lines[:-1])
            file.write_text(text, "utf-8")


def _between(text: str, begin: str, end: str, lines: list[str]) -> str:
    """A text with other lines between two marks."""
    before, rest = text.split(begin)
    written = "\n".join(lines)
    return f"{before}{begin}\n\n{written}\n\n{end}{rest.split(end)[1]}"
