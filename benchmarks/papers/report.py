"""The comparisons as Markdown and plots: tables with the spread of the seeds, and a verdict for each claim."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.papers.figures import Figures, Spread
from benchmarks.papers.tables import SEEDS, Book, Claim, Table
from hf_xlsr.utils.markdown import escape_markdown, markdown_table

BEGIN, END = "<!-- papers -->", "<!-- /papers -->"
OPPOSITE = "opposite at this size"
HEADER = ("comparison", "claim", "measure", "first", "second", "verdict")
Spreads = Mapping[str, Mapping[str, Spread]]  # by column title and row name


def verdict(better: Spread | None, worse: Spread | None, fixed: bool = False, margin: float = 0.0) -> str:
    """What the seeds say about the claim that one row is above another."""
    few, many = sorted(side.count if side else 0 for side in (better, worse))
    if not few or many < SEEDS or (few < SEEDS and not fixed):
        return "open"
    if better.low + margin > worse.high:
        return "shown"
    return OPPOSITE if better.high + margin < worse.low else "no difference beyond the seeds"


def figure(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return "-"
    mean, low, high = (f"{value:,.{digits}f}" for value in (spread.mean, spread.low, spread.high))
    return mean if low == high else f"{mean} ({low}-{high})"


def table_lines(table: Table, spreads: Spreads, trained: Mapping[str, Any]) -> list[str]:
    """Page of a table; `trained` comes from `Figures.trained`."""
    rows = [row for row in table.rows if not row.hidden]
    several: list[str] = []
    body: list[list[str]] = []
    for row in rows:
        label = escape_markdown(row.title)
        found = [spreads[column.title].get(row.name) for column in table.columns]
        count = max((spread.count for spread in found if spread), default=0)
        if count > 1:
            several.append(f"{label} ({count})")
        cells = [figure(spread, column.digits) for spread, column in zip(found, table.columns, strict=True)]
        fewer = [f"; of {spread.count}" if spread and spread.count < count else "" for spread in found]
        body.append([label, *map("".join, zip(cells, fewer, strict=True))])
    command = f"`python -m benchmarks.papers --only {table.name}`"
    text = [f"{command}. All rows have equal {table.equal}{table.but and ', but '}{table.but}."]
    if several:
        others = "; the others have seed 1" if len(several) < len(rows) else ""
        text.append(f"Rows with several seeds: {', '.join(several)}{others}.")
    if trained["trainings"]:
        minutes = f"{trained['seconds'] / 60:.0f} minutes in all"
        where, threads = " and ".join(trained["hardware"]), " or ".join(map(str, trained["threads"]))
        text.append(f"{trained['trainings']} trainings, {minutes}, on {where}, {threads} thread(s) each.")
    header = [" ", *(escape_markdown(column.title) for column in table.columns)]
    lines = [f"# {escape_markdown(table.title)}", "", table.paper, "", *markdown_table(header, body), ""]
    if table.claims:
        text.append("Verdicts: [results](../results.md#what-the-papers-claim-at-this-size).")
    return [*lines, *([table.note, ""] if table.note else []), " ".join(text), ""]


def claim_cells(table: Table, claim: Claim, spreads: Spreads) -> list[str]:
    """A claim, what was measured, the two figures, and the verdict."""
    digits = {column.title: column.digits for column in table.columns}
    named = ((claim.better, claim.column), (claim.worse, claim.against or claim.column))
    better, worse = sides = [spreads[title].get(name) for name, title in named]
    fixed = any(table.row(name).encoder for name, _ in named)
    if (claim.better == claim.worse or claim.goes_on) and better and worse:
        both = {seed: value - worse.by_seed[seed] for seed, value in better.by_seed.items() if seed in worse.by_seed}
        better, worse, fixed = Spread.of(both) if both else None, Spread.of({0: 0.0}), True
    found = verdict(better, worse, fixed=fixed, margin=claim.margin)
    what = escape_markdown(" against ".join(dict.fromkeys(title for _, title in named)))
    figures = [figure(side, digits[title]) for side, (_, title) in zip(sides, named, strict=True)]
    said = "too short to tell" if table.short and found == OPPOSITE else found
    return [claim.text + (" (ours)" if claim.ours else ""), what, *figures, said]


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


def write_report(book: Book, kept: Figures, docs: Path) -> None:
    """Writes a page for each table with two rows or more, draws its plot, and puts all claims into `results.md`."""
    claims: list[list[str]] = []
    for table in book.tables:
        spreads = kept.spreads(table)
        measured = {name for values in spreads.values() for name in values}
        if len(measured) < 2 or measured <= {row.name for row in table.rows if row.encoder}:
            continue
        lines = table_lines(table, spreads, kept.trained(table))
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
        claims += [[link, *claim_cells(table, claim, spreads)] for claim in table.claims]
    page = docs / "results.md"
    before, rest = page.read_text("utf-8").split(BEGIN)
    written = "\n".join(markdown_table(HEADER, claims, numbers_from=6))
    page.write_text(f"{before}{BEGIN}\n\n{written}\n\n{END}{rest.split(END)[1]}", "utf-8")
