"""What a campaign found, as Markdown and plots: tables with the spread of their seeds, and a verdict for each claim."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from campaign_figures import Figures, Spread, Trained, Values, metrics_of_row
from campaign_fingerprint import training_fingerprint
from campaign_jobs import fingerprint_of_run, spaces_of
from campaign_plan import SEEDS, Claim, Row, Table, run_of

from hf_xlsr.evaluation.report import split_key
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.markdown_text import escape_markdown, markdown_table

BEGIN, END = "<!-- campaign -->", "<!-- /campaign -->"
SHOWN, CONTRADICTED, NOT_SHOWN, OPEN = "shown", "contradicted", "not shown at this size", "open"
INTRODUCTION = (
    "`python benchmarks/campaign.py --budget-minutes N` writes this part. Figures of several seeds are means, with "
    "the lowest and the highest in brackets where they differ; other rows, and hollow points of plots, are of one "
    "seed. A claim is *shown* where each seed of the one row is above each seed of the other, *contradicted* where "
    "each is below, and else *not shown at this size*; it is *open* where either row has fewer than three seeds; an "
    "encoder as it came needs none. Two figures of one training, and of a training and one that goes on from its "
    "weights, are compared seed by seed. Were there nothing to any claim, one in twenty would come out as shown, and "
    "one as contradicted, with three seeds a side, and one in eight each where seeds are compared one by one or with "
    "an encoder as it came; several claims are of the same trainings, so that chance may favour them together; and "
    "the seeds know nothing of the chance in the choice of a test set. Claims with (ours) are in no paper. `e5-small` "
    "as it came is given the prompt that it was trained with, other encoders none. The STS average is of five sets "
    "(STS12, 13 and 14, STS-B, SICK-R), the SentEval average of MR, SUBJ, MPQA, SST2, MRPC and SICK-E. BUCC-like F1 "
    "is with the margin of dual momentum contrast (distance, 3 neighbours) in its tables and with LASER's (ratio, 4) "
    "across methods. Minutes are the wall's, which another training beside (--jobs 2) lengthens, and a slower "
    "machine; of the controls the processor's; stages that are no row are not counted. Trainings are in bfloat16 "
    "where the processor multiplies it in hardware (Intel Xeon here), else in float32 (an AMD EPYC here that has AVX2 "
    "alone, another than that of the rest of this page). No setting was chosen on these sets, which are in the domain "
    "of what most rows learn from: all trainings but those of `cmlm_en_open`, of `cmlm_open` without retrieval, of "
    "inference and of GLUE see other sentences of Tatoeba, those of English-German newstest of earlier years as well, "
    "and what they gain on an encoder as it came is in part that. Tokenizers of their own, which the lightweight rows "
    "and `cmlm_en_open` train, had an order of equally frequent pieces by chance before they were settled; it is "
    "among what differs from run to run. [campaign_figures.json](campaign_figures.json) has the figures for machines: "
    "seed by seed, or, where an entry has several seeds, mean, lowest and highest as they were printed before that "
    "file was kept."
)
QUERIES = ("de", "fr", "zh")  # of figure 2 of CMLM


def verdict(better: Spread | None, worse: Spread | None, fixed: bool = False, margin: float = 0.0) -> str:
    """What seeds say of a claim that one row is above another.

    Args:
        better: Of the row that the claim has above.
        worse: Of the other.
        fixed: Whether one of the rows has no seeds: an encoder as it came.
        margin: What `better` may lack.

    Example:
        >>> low = Spread.of({1: 1.0, 2: 1.1, 3: 1.9})
        >>> verdict(Spread.of({1: 2.0, 2: 2.1, 3: 2.2}), low), verdict(Spread.of({1: 1.8, 2: 2.1, 3: 2.2}), low)
        ('shown', 'not shown at this size')
    """
    if better is None or worse is None:
        return OPEN
    counts = sorted((better.count, worse.count))
    if counts[1] < SEEDS or (counts[0] < SEEDS and not fixed):
        return OPEN
    if better.low + margin > worse.high:
        return SHOWN
    return CONTRADICTED if better.high + margin < worse.low else NOT_SHOWN


def figure(spread: Spread | None, digits: int) -> str:
    """A mean and, of several seeds, its range where they differ; a dash where nothing was measured."""
    if spread is None:
        return "-"
    mean, low, high = (f"{value:,.{digits}f}" for value in (spread.mean, spread.low, spread.high))
    return mean if low == high else f"{mean} ({low}-{high})"


def table_lines(table: Table, figures: Mapping[str, Values], said: str) -> list[str]:
    """A table's section; `said` comes from `facts_of`."""
    rows = [row for row in table.rows if not row.hidden]
    several: list[str] = []
    body: list[list[str]] = []
    for row in rows:
        label = escape_markdown(row.label or row.name)
        found = [figures[column.title].get(row.name) for column in table.columns]
        count = max((spread.count for spread in found if spread), default=0)
        if count > 1:
            several.append(f"{label} ({count})")
        cells = [figure(spread, column.digits) for spread, column in zip(found, table.columns, strict=True)]
        fewer = [f"; of {spread.count}" if spread and spread.count < count else "" for spread in found]
        body.append([label, *map("".join, zip(cells, fewer, strict=True))])
    command = f"`python benchmarks/campaign.py --budget-minutes N --only {table.name}`"
    introduction = [
        f"{table.paper} {command}; equal {table.equal} in all rows{table.but and ', but '}{table.but}.",
        said,
    ]
    if several:
        others = "; seed 1 of the others" if len(several) < len(rows) else ""
        introduction.insert(1, f"Several seeds of {', '.join(several)}{others}.")
    header = [" ", *(escape_markdown(column.title) for column in table.columns)]
    lines = [f"### {escape_markdown(table.title)}", "", " ".join(filter(None, introduction)), ""]
    lines += [*markdown_table(header, body), ""]
    lines += [f"- {claim_line(table, claim, figures)}" for claim in table.claims]
    return [*lines, *([""] if table.claims else []), *([table.note, ""] if table.note else [])]


def claim_line(table: Table, claim: Claim, figures: Mapping[str, Values]) -> str:
    """A claim, its figures and its verdict."""
    digits = {column.title: column.digits for column in table.columns}
    named = ((claim.better, claim.column), (claim.worse, claim.against or claim.column))
    better, worse = sides = [figures[title].get(name) for name, title in named]
    fixed = any(table.row(name).encoder for name, _ in named)
    if (claim.better == claim.worse or claim.goes_on) and better and worse:
        both = {seed: value - worse.by_seed[seed] for seed, value in better.by_seed.items() if seed in worse.by_seed}
        better, worse, fixed = Spread.of(both) if both else None, Spread.of({0: 0.0}), True
    shown = " against ".join(figure(side, digits[title]) for side, (_, title) in zip(sides, named, strict=True))
    what = escape_markdown(" against ".join(dict.fromkeys(title for _, title in named)))
    text = claim.text + (" (ours)" if claim.ours else "")
    return f"{text} ({what}: {shown}): **{verdict(better, worse, fixed=fixed, margin=claim.margin)}**."


def facts_of(trained: Trained | None) -> str:
    """Machine, threads and time of a table's trainings, in a sentence; nothing before the first has ended.

    Of a recipe with stages, those that are rows count.
    """
    if trained is None:
        return ""
    where = f", on {' and '.join(trained.hardware)}" if trained.hardware else ""
    with_threads = f", {' or '.join(map(str, trained.threads))} thread(s) each" if trained.threads else ""
    return f"{trained.trainings} trainings, {trained.seconds / 60:.0f} minutes in all{where}{with_threads}."


def draw(table: Table, figures: Mapping[str, Values], path: Path) -> None:
    """The table's columns over its axis, with the range of the seeds, where two points or more differ."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    places = sorted((row.x, row.name) for row in table.rows if row.x is not None)
    curves: dict[str, list[tuple[float, Spread]]] = {}
    for column in (column for column in table.columns if not column.metric.startswith("settings:")):
        values = figures[column.title]
        curves[column.title] = [(x, values[name]) for x, name in places if name in values]
    curves = {title: points for title, points in curves.items() if len({spread.mean for _, spread in points}) > 1}
    if not curves:
        path.unlink(missing_ok=True)  # one of figures that are kept no more
        return
    picture, axes = pyplot.subplots(1, len(curves), figsize=(3.4 * len(curves), 3.0), squeeze=False)
    for axis, (title, points) in zip(axes[0], curves.items(), strict=True):
        across = [x for x, _ in points]
        means = [spread.mean for _, spread in points]
        range_of = [
            [spread.mean - spread.low for _, spread in points],
            [spread.high - spread.mean for _, spread in points],
        ]
        line = axis.errorbar(across, means, yerr=range_of, capsize=3)
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
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(picture)


def draw_languages(table: Table, home: Path, measured: Path, path: Path) -> None:
    """Languages of what the queries of figure 2 of CMLM retrieve, for the table's histograms, once all are measured."""
    found: dict[str, dict[str, float]] = {}
    for row in map(table.row, table.histograms):
        if not run_is_of(table, row, home):
            return
        metrics = metrics_of_row(table, row, 1, home, measured)
        bias = {key: value for key, value in metrics.items() if "language-bias" in key}
        if bias:
            found[row.label or row.name] = {key: bias[key] for key in bias if split_key(key)[1] in QUERIES}
    if len(found) < len(table.histograms):
        return
    from hf_xlsr.evaluation.plots.languages import plot_languages

    path.parent.mkdir(parents=True, exist_ok=True)
    plot_languages(path, found)


def run_is_of(table: Table, row: Row, home: Path) -> bool:
    """Whether the run of a row's first seed is of its recipe as it is now."""
    run = run_of(table, row, 1, home)
    return run is None or fingerprint_of_run(run) == training_fingerprint(table, row)


def campaign_lines(
    tables: Sequence[Table], kept: Figures, home: Path, measured: Path, images: Path, links: str
) -> list[str]:
    """The whole part: the claims at a glance, then each table that has a figure of a training.

    Args:
        tables: In order.
        kept: Their figures.
        home: Folder of runs, for pictures of translations; one that was drawn before stays where its run has gone.
        measured: Folder of peers.py, for pictures of languages; likewise.
        images: Where pictures go.
        links: How the page links them.
    """
    glance: list[list[str]] = []
    sections: list[str] = []
    for table in tables:
        figures = kept.spreads(table)
        trained = {row.name for row in table.rows if not row.encoder}
        there = {name for values in figures.values() for name in values}
        if len(there) < 2 or not trained & there:
            continue  # nothing is compared yet
        sections += table_lines(table, figures, facts_of(kept.trained(table)))
        drawn = _pictures(table, figures, there, home, measured, images)
        sections += [line for file, what in drawn.items() for line in (f"![{what}]({links}/{file.name})", "")]
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


def picture_of(table: Table, images: Path, kind: str = "") -> Path:
    """Where a table's picture of a kind is kept; the one over its axis has none."""
    return images / f"campaign_{table.name}{'_' if kind else ''}{kind}.png"


def drop_pictures(tables: Sequence[Table], changed: Sequence[str], images: Path) -> None:
    """Removes pictures of encoders whose recipes have changed since.

    Args:
        tables: All of them.
        changed: What `Figures.forget_changed` gives.
        images: Where pictures are kept.
    """
    for table in tables:
        for kind, rows in {"tsne": table.cards[:1], "languages": table.histograms, "spaces": table.spaces}.items():
            if any(f"{table.name}, {row}" in changed for row in rows):
                picture_of(table, images, kind).unlink(missing_ok=True)


def _pictures(
    table: Table, figures: Mapping[str, Values], there: set[str], home: Path, measured: Path, images: Path
) -> dict[Path, str]:
    """Draws or takes in what can be drawn anew, drops what is of rows that have gone, and says what each shows.

    Args:
        table: The table.
        figures: Its figures.
        there: Names of rows that have one.
        home: As of `campaign_lines`, and so are the others.
        measured: Likewise.
        images: Likewise.
    """
    said: dict[str, str] = {}
    images.mkdir(parents=True, exist_ok=True)
    if table.axis:
        draw(table, figures, picture_of(table, images))
        said[""] = table.title
    if table.cards:
        shown = table.row(table.cards[0])
        run = run_of(table, shown, 1, home)
        if run is not None and (run.folder / "tsne.png").is_file() and run_is_of(table, shown, home):
            shutil.copyfile(run.folder / "tsne.png", picture_of(table, images, "tsne"))
        if shown.name in there:
            said["tsne"] = f"{table.title}: translations of {shown.label or shown.name}"
    if table.histograms:
        draw_languages(table, home, measured, picture_of(table, images, "languages"))
        if there.issuperset(table.histograms):
            what = "languages of the sentences retrieved, seed 1, and the mean bias of these queries"
            said["languages"] = f"{table.title}: {what}"
    if table.spaces:
        spaces = spaces_of(table, home, measured)
        if spaces.done() and all(run_is_of(table, table.row(name), home) for name in table.spaces):
            shutil.copyfile(spaces.file, picture_of(table, images, "spaces"))
        if there.issuperset(table.spaces):
            said["spaces"] = f"{table.title}: sentences of Tatoeba on a plane (t-SNE), seed 1"
    for kind in ("tsne", "languages", "spaces"):
        if kind not in said:  # its row was of another recipe, and has gone
            picture_of(table, images, kind).unlink(missing_ok=True)
    files = {picture_of(table, images, kind): escape_markdown(what) for kind, what in said.items()}
    return {file: what for file, what in files.items() if file.is_file()}


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
