"""What a campaign found, as Markdown and plots: tables with the spread of their seeds, and a verdict for each claim."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean
from typing import Any

from campaign_jobs import measurement_of
from campaign_plan import SEEDS, Claim, Column, Row, Table, run_of

from hf_xlsr.errors import XlsrError
from hf_xlsr.evaluation.markdown_text import escape_markdown, markdown_table
from hf_xlsr.evaluation.report import load_results, split_key

BEGIN, END = "<!-- campaign -->", "<!-- /campaign -->"
SHOWN, CONTRADICTED, NOT_SHOWN, OPEN = "shown", "contradicted", "not shown at this size", "open"
INTRODUCTION = (
    "`python benchmarks/campaign.py --budget-minutes N` writes this part. Figures of several seeds are means, with the "
    "lowest and the highest in brackets; others are of one seed. A claim is *shown* where each seed of the one row is "
    "above each seed of the other, *contradicted* where each is below, and else *not shown at this size*; it is *open* "
    "where either row has fewer than three seeds; an encoder as it came needs none. Were there nothing to any of them, "
    "one in twenty would come out as shown, and one as contradicted, with three seeds a side; and the seeds know nothing "
    "of the chance in the choice of a test set. Claims with (ours) are in no paper. `e5-small` as it came is given the "
    "prompt that it was trained with, other encoders none. Minutes are the wall's, which another training beside "
    "(--jobs 2) lengthens; of the controls the processor's. Nothing was chosen on these sets."
)
QUERIES = ("de", "fr", "zh")  # of figure 2 of CMLM

Values = dict[str, dict[int, float]]


def value_of(column: Column, metrics: Mapping[str, float], run: Path | None) -> float | None:
    """A column's figure of one run; None where it is not measured."""
    kind, _, name = column.metric.partition(":")
    found: Any = None
    if kind == "log" and run is not None and (file := run / "training" / "log.json").is_file():
        found = next((entry[name] for entry in reversed(json.loads(file.read_text("utf-8"))) if name in entry), None)
    elif kind == "settings" and run is not None and (file := run / "results.json").is_file():
        found = load_results(file)["settings"]
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    elif kind not in ("log", "settings"):
        patterns = column.metric.split()
        matching = [value for key, value in metrics.items() if any(fnmatchcase(key, one) for one in patterns)]
        found = fmean(matching) if matching else None
    return None if found is None else column.scale * float(found)


def collect(table: Table, home: Path, measured: Path) -> dict[str, Values]:
    """Figures by column, row and seed, as far as they are there."""
    figures: dict[str, Values] = {column.title: {} for column in table.columns}
    for row in table.rows:
        for seed in table.seeds(row):
            run = run_of(table, row, seed, home)
            metrics = metrics_of_row(table, row, seed, home, measured)
            for column in table.columns:
                value = value_of(column, metrics, run.folder if run else None)
                if value is not None:
                    figures[column.title].setdefault(row.name, {})[seed] = value
    return figures


def metrics_of_row(table: Table, row: Row, seed: int, home: Path, measured: Path) -> dict[str, float]:
    """What a row's run said at its end and peers.py since, in the table's languages."""
    run = run_of(table, row, seed, home)
    metrics: dict[str, float] = {}
    if run is not None and (run.folder / "results.json").is_file():
        metrics |= load_results(run.folder / "results.json")["metrics"]
    for of_unit in measurement_of(table, row, seed, home, measured).metrics().values():
        metrics |= of_unit
    # An encoder as it came may have been measured in more languages.
    known = set(table.languages.replace("+", "-").split("-"))
    return {key: value for key, value in metrics.items() if set(split_key(key)[1].split("-")) <= known}


def verdict(better: Sequence[float], worse: Sequence[float], fixed: bool = False, margin: float = 0.0) -> str:
    """What seeds say of a claim that one row is above another.

    Args:
        better: Figures of the row that the claim has above, by seed.
        worse: Those of the other.
        fixed: Whether one of the rows has no seeds: an encoder as it came.
        margin: What `better` may lack.

    Example:
        >>> verdict([2.0, 2.1, 2.2], [1.0, 1.1, 1.9]), verdict([2.0, 2.1, 2.2], [1.0, 1.1, 2.0])
        ('shown', 'not shown at this size')
    """
    counts = sorted((len(better), len(worse)))
    if not counts[0] or counts[1] < SEEDS or (counts[0] < SEEDS and not fixed):
        return OPEN
    if min(better) + margin > max(worse):
        return SHOWN
    return CONTRADICTED if max(better) + margin < min(worse) else NOT_SHOWN


def figure(values: Sequence[float], digits: int) -> str:
    """A mean and, of several seeds, its range; a dash where nothing was measured."""
    if not values:
        return "-"
    mean, low, high = (f"{value:,.{digits}f}" for value in (fmean(values), min(values), max(values)))
    return mean if low == high else f"{mean} ({low}-{high})"


def table_lines(table: Table, figures: Mapping[str, Values], said: str) -> list[str]:
    """A table's section; `said` comes from `facts_of`."""
    rows = [row for row in table.rows if not row.hidden]
    body = [
        [escape_markdown(row.label or row.name)]
        + [figure(list(figures[c.title].get(row.name, {}).values()), c.digits) for c in table.columns]
        for row in rows
    ]
    counts = {
        escape_markdown(row.label or row.name): max(len(values.get(row.name, {})) for values in figures.values())
        for row in rows
    }
    several = [f"{label} ({count})" for label, count in counts.items() if count > 1]
    command = f"`python benchmarks/campaign.py --budget-minutes N --only {table.name}`"
    introduction = [f"{table.paper} {command}; equal {table.equal} in all rows.", said]
    if several:
        introduction.insert(1, f"Several seeds of {', '.join(several)}; seed 1 of the others.")
    header = [" ", *(escape_markdown(column.title) for column in table.columns)]
    lines = [f"### {escape_markdown(table.title)}", "", " ".join(filter(None, introduction)), ""]
    lines += [*markdown_table(header, body), ""]
    lines += [f"- {claim_line(table, claim, figures)}" for claim in table.claims]
    return [*lines, *([""] if table.claims else []), *([table.note, ""] if table.note else [])]


def claim_line(table: Table, claim: Claim, figures: Mapping[str, Values]) -> str:
    """A claim, its figures and its verdict."""
    digits = {column.title: column.digits for column in table.columns}
    named = ((claim.better, claim.column), (claim.worse, claim.against or claim.column))
    sides = [figures[title].get(name, {}) for name, title in named]
    better, worse = (list(side.values()) for side in sides)
    fixed = any(table.row(name).encoder for name, _ in named)
    if claim.better == claim.worse:  # two figures of one run
        better, worse, fixed = [sides[0][seed] - sides[1][seed] for seed in sides[0] if seed in sides[1]], [0.0], True
    shown = " against ".join(
        figure(list(side.values()), digits[title]) for side, (_, title) in zip(sides, named, strict=True)
    )
    what = escape_markdown(" against ".join(dict.fromkeys(title for _, title in named)))
    text = claim.text + (" (ours)" if claim.ours else "")
    return f"{text} ({what}: {shown}): **{verdict(better, worse, fixed=fixed, margin=claim.margin)}**."


def facts_of(table: Table, home: Path) -> str:
    """Machine, threads and time of a table's runs, in a sentence; nothing before the first has ended."""
    found: dict[Path, dict[str, Any]] = {}
    for row in table.rows:
        for seed in table.seeds(row):
            run = run_of(table, row, seed, home)
            if run is not None and (file := run.folder / "results.json").is_file():
                found[run.folder] = load_results(file)["settings"]
    if not found:
        return ""
    machines = sorted({str(of["hardware"]) for of in found.values() if of.get("hardware")})
    threads = sorted({int(of["threads"]) for of in found.values() if "threads" in of})
    spent = [of["seconds"]["training"] for of in found.values() if isinstance(of.get("seconds"), Mapping)]
    spent += [of["cpu_seconds"] for of in found.values() if "cpu_seconds" in of]
    where = f", on {' and '.join(machines)}" if machines else ""
    with_threads = f", {' or '.join(map(str, threads))} thread(s) each" if threads else ""
    return f"{len(found)} trainings, {sum(spent) / 60:.0f} minutes in all{where}{with_threads}."


def draw(table: Table, figures: Mapping[str, Values], path: Path) -> bool:
    """The table's columns over its axis, with the range of the seeds; whether there was anything to draw."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    places = sorted((row.x, row.name) for row in table.rows if row.x is not None)
    curves: dict[str, list[tuple[float, list[float]]]] = {}
    for column in (column for column in table.columns if not column.metric.startswith("settings:")):
        points = [(x, list(figures[column.title].get(name, {}).values())) for x, name in places]
        curves[column.title] = [(x, values) for x, values in points if values]
    curves = {title: points for title, points in curves.items() if len(points) > 1}
    if not curves:
        return False
    picture, axes = pyplot.subplots(1, len(curves), figsize=(3.4 * len(curves), 3.0), squeeze=False)
    for axis, (title, points) in zip(axes[0], curves.items(), strict=True):
        across = [x for x, _ in points]
        means = [fmean(values) for _, values in points]
        below = [mean - min(values) for mean, (_, values) in zip(means, points, strict=True)]
        above = [max(values) - mean for mean, (_, values) in zip(means, points, strict=True)]
        axis.errorbar(across, means, yerr=[below, above], marker="o", capsize=3)
        if min(across) > 0 and max(across) >= 4 * min(across):
            axis.set_xscale("log", base=2)
            axis.minorticks_off()
        axis.set_xticks(across, [f"{x:,g}" for x in across], rotation=30)
        axis.set(title=title, xlabel=table.axis)
        axis.grid(alpha=0.3)
    picture.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(picture)
    return True


def draw_languages(table: Table, home: Path, measured: Path, path: Path) -> bool:
    """Languages of what the queries of figure 2 of CMLM retrieve, for the table's histograms; whether there were any."""
    found: dict[str, dict[str, float]] = {}
    for row in map(table.row, table.histograms):
        metrics = metrics_of_row(table, row, 1, home, measured)
        bias = {key: value for key, value in metrics.items() if "language-bias" in key}
        if bias:
            found[row.label or row.name] = {key: bias[key] for key in bias if split_key(key)[1] in QUERIES}
    if not found:
        return False
    from hf_xlsr.evaluation.plots_languages import plot_languages

    path.parent.mkdir(parents=True, exist_ok=True)
    plot_languages(path, found)
    return True


def campaign_lines(tables: Sequence[Table], home: Path, measured: Path, images: Path, links: str) -> list[str]:
    """The whole part: the claims at a glance, then each table that has a figure of a training.

    Args:
        tables: In order.
        home: Folder of runs.
        measured: Folder of peers.py.
        images: Where plots go.
        links: How the page links them.
    """
    glance: list[list[str]] = []
    sections: list[str] = []
    for table in tables:
        figures = collect(table, home, measured)
        trained = {row.name for row in table.rows if not row.encoder}
        there = {name for values in figures.values() for name in values}
        if len(there) < 2 or not trained & there:
            continue  # nothing is compared yet
        sections += table_lines(table, figures, facts_of(table, home))
        if table.axis and draw(table, figures, images / f"campaign_{table.name}.png"):
            sections += [f"![{escape_markdown(table.title)}]({links}/campaign_{table.name}.png)", ""]
        shown = run_of(table, table.row(table.cards[0]), 1, home) if table.cards else None
        if shown is not None and (shown.folder / "tsne.png").is_file():
            images.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(shown.folder / "tsne.png", images / f"campaign_{table.name}_tsne.png")
            what = f"{table.title}: translations of {table.row(table.cards[0]).label or table.cards[0]}"
            sections += [f"![{escape_markdown(what)}]({links}/campaign_{table.name}_tsne.png)", ""]
        if table.histograms and draw_languages(table, home, measured, images / f"campaign_{table.name}_languages.png"):
            what = f"{table.title}: languages of the sentences retrieved, seed 1"
            sections += [f"![{escape_markdown(what)}]({links}/campaign_{table.name}_languages.png)", ""]
        for claim in table.claims:
            said, _, result = claim_line(table, claim, figures).rpartition(": ")
            glance.append([escape_markdown(table.title), said, result.rstrip(".")])
    lines = ["## The papers' comparisons at this size", "", INTRODUCTION, ""]
    if glance:
        lines += [
            *markdown_table(["comparison", "claim, and what was measured", "verdict"], glance, numbers_from=3),
            "",
        ]
    return [*lines, *sections]


def write_page(page: Path, lines: Sequence[str]) -> None:
    """Puts the campaign's part between its two marks on a page, and leaves the rest.

    Raises:
        XlsrError: the page has no such marks.
    """
    text = page.read_text("utf-8")
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise XlsrError(f"{page} has no '{BEGIN}' and '{END}'; put both where the campaign's part belongs.")
    page.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines).rstrip() + f"\n\n{END}{after}", "utf-8")
