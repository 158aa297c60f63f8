"""The verbs `mine` and `score` of the `hf-xlsr` command."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_xlsr.cli.options import MODEL, extended, keyword, parse_languages, parse_routes, read_vectors, shared
from hf_xlsr.utils.errors import XlsrError

if TYPE_CHECKING:
    from hf_xlsr.mining.options import MiningOptions

SEARCH = "Search"  # panel of the help
BLOCKS = " ▁▂▃▄▅▆▇█"


def _choosing(help: str) -> Any:
    return typer.Option(help=help, rich_help_panel="Choosing the threshold")


Model = Annotated[str | None, typer.Option(help=MODEL)]
Output = Annotated[str, typer.Option(help="File of pairs: .tsv, .jsonl, .parquet or .tmx.")]
Format = Annotated[str | None, typer.Option(help="Format of the output; by default by its suffix.")]
Work = Annotated[str | None, typer.Option(metavar="FOLDER", help="Folder to resume from; by default OUTPUT.work.")]
KeepWork = Annotated[bool, typer.Option("--keep-work", help="Keep the default work folder, too.")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
COMMON = [
    keyword(
        "vectors",
        str | None,
        None,
        "Embeddings that `hf-xlsr encode` and other commands share; filled as well.",
        metavar="FOLDER",
    ),
    *shared("languages", "prompt", "routes", "batch_size", "device", "dtype", batch_size=64),
    *(
        keyword(name, kind | None, None, text, rich_help_panel=SEARCH)
        for name, kind, text in (
            ("k", int, "Size of the neighbourhoods (default 4)."),
            ("margin", str, "ratio, distance or absolute (default ratio)."),
            ("method", str, "exact, ivf or auto, which depends on the size (default auto)."),
            ("recall", float, "Share of true neighbours that approximate search must find on a sample, e.g. 0.98."),
            ("memory", str, "Memory for mining, besides the model, e.g. 4GB."),
        )
    ),
]


@extended(*COMMON)
def mine(
    source: Annotated[
        str, typer.Argument(help="One sentence per line, also compressed; or a table or dataset with a column `text`.")
    ],
    target: Annotated[str, typer.Argument(help="The same in the other language.")],
    output: Output,
    model: Model = None,
    source_vectors: Annotated[
        str | None, typer.Option(metavar="FILE", help="Embeddings of SOURCE instead of a model: .npy, a row per line.")
    ] = None,
    target_vectors: Annotated[
        str | None, typer.Option(metavar="FILE", help="Embeddings of TARGET instead of a model: .npy, a row per line.")
    ] = None,
    retrieval: Annotated[
        str | None, typer.Option(help="max, intersection, forward or backward (default max).", rich_help_panel=SEARCH)
    ] = None,
    threshold: Annotated[float | None, _choosing("Lowest score to keep; by default all.")] = None,
    known: Annotated[
        list[str] | None, _choosing("Translations in any format, hidden among the sentences to choose the threshold.")
    ] = None,
    gold: Annotated[
        list[str] | None, _choosing("All translations between the two texts, in any format, to choose the threshold.")
    ] = None,
    labels: Annotated[str | None, _choosing("Labels saved from the report, to choose the threshold.")] = None,
    precision: Annotated[
        float | None, _choosing("Precision that the chosen threshold reaches; by default it has the best F1.")
    ] = None,
    many: Annotated[
        bool, typer.Option("--many", help="Use a sentence in several pairs.", rich_help_panel=SEARCH)
    ] = False,
    duplicates: Annotated[str | None, typer.Option(help="merge, keep or drop equal lines (default merge).")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Column of a table: text=COLUMN; {lang} is each of --languages.")
    ] = None,
    split_sentences: Annotated[
        bool, typer.Option("--split-sentences", help="Split documents into sentences.")
    ] = False,
    cleaning: Annotated[
        str | None,
        typer.Option(metavar="STEP,...", help="Steps as in a recipe, e.g. normalize,language,length,ratio."),
    ] = None,
    max_pairs: Annotated[int | None, typer.Option(metavar="N", help="Number of best pairs to keep.")] = None,
    format: Format = None,
    work: Work = None,
    keep_work: KeepWork = False,
    json: Json = False,
    **given: Any,
) -> int:
    """Find translations in two texts."""
    from hf_xlsr.mining.outputs import write_pairs
    from hf_xlsr.mining.pipeline import run_mining
    from hf_xlsr.mining.report import read_labels, write_report
    from hf_xlsr.mining.texts import clean_pairs
    from hf_xlsr.runs.inputs import check_named

    given |= {"retrieval": retrieval, "threshold": threshold, "duplicates": duplicates, "max_pairs": max_pairs}
    if sum(map(bool, (known, gold, labels))) > 1 or (precision is not None and not (known or gold or labels)):
        raise XlsrError("Give at most one of --known, --gold and --labels; --precision needs one of them.")
    options = mining_options(given | {"one_to_one": False if many else None}, quiet=json)
    if (source_vectors is None) != (target_vectors is None):
        raise XlsrError("Give both --source-vectors and --target-vectors.")
    steps = [step.strip() for step in (cleaning or "").split(",") if step.strip()]
    sides = _sides((source, target), options.languages, columns, split_sentences, steps)
    files = {"--source-vectors": source_vectors, "--target-vectors": target_vectors, "--known": known, "--gold": gold}
    check_named(model, {"SOURCE": source, "TARGET": target, "--labels": labels, **files})

    def run(folder: Path) -> dict[str, Any] | None:
        vectors = (
            (read_vectors(source_vectors), read_vectors(target_vectors)) if source_vectors and target_vectors else None
        )
        pairs = {name: _pairs(files, options.languages) if files else None for name, files in pairs_given.items()}
        mined = run_mining(sides[0], sides[1], folder, options, encoder=model, vectors=vectors, known=pairs["known"])
        if not mined.is_main:
            return None
        if pairs["gold"] is not None:
            mined = replace(mined, curve=mined.gold_curve(pairs["gold"]))
        elif labels:
            mined = replace(mined, curve=mined.label_curve(read_labels(labels)))
        chosen = mined.chosen(options, precision)
        kept: dict[str, Any] = {}
        found = clean_pairs(chosen.sentences(), steps, options.languages, kept)
        count = write_pairs(output, found, format=format, languages=options.languages)
        page, lowest = f"{output}.report.html", chosen.report["threshold"]
        shown: dict[str, Any] = {"title": f"{source} and {target}", "languages": options.languages}
        write_report(page, mined.sentences(), mined.rows.score, curve=mined.curve, threshold=lowest, **shown)
        report = {**chosen.report, "page": page, "histogram": histogram(mined.rows.score, lowest)}
        if steps:
            texts = [getattr(side, "report", {}) for side in sides]
            report |= {"pairs": count, "cleaning": {"source": texts[0], "target": texts[1], "pairs": kept}}
        return _finish(output, folder, report, clean_pairs(chosen.sentences(), steps, options.languages, {}))

    pairs_given = {"known": known, "gold": gold}
    return _run(run, options, output, format, work, keep_work, json)


@extended(*COMMON)
def score(
    pairs: Annotated[list[str], typer.Argument(help="File of pairs in any supported format, or two Moses files.")],
    output: Output,
    model: Annotated[str, typer.Option(help=MODEL)],
    columns: Annotated[str | None, typer.Option(help="Our column = column of the file: source=en,target=de.")] = None,
    source_pool: Annotated[
        str | None, typer.Option(metavar="FILE", help="Sources to compare with; by default those of the pairs.")
    ] = None,
    target_pool: Annotated[
        str | None, typer.Option(metavar="FILE", help="Targets to compare with; by default those of the pairs.")
    ] = None,
    format: Format = None,
    work: Work = None,
    keep_work: KeepWork = False,
    json: Json = False,
    **given: Any,
) -> int:
    """Score given pairs by margin and cosine."""
    from hf_xlsr.mining.outputs import SCORE_COLUMNS, write_pairs
    from hf_xlsr.mining.report import write_report
    from hf_xlsr.mining.scoring import run_scoring
    from hf_xlsr.runs.inputs import check_named

    options = mining_options(given, quiet=json)
    check_named(model, {"PAIRS": pairs, "--source-pool": source_pool, "--target-pool": target_pool})
    sources, targets = (_Column(pairs, columns, options.languages, side) for side in ("source", "target"))

    def run(folder: Path) -> dict[str, Any] | None:
        pools = {"source_pool": source_pool, "target_pool": target_pool}
        scored = run_scoring(sources, targets, pools, folder, options, encoder=model)
        if not scored.is_main:
            return None
        write_pairs(output, scored.sentences(), columns=SCORE_COLUMNS, format=format, languages=options.languages)
        page, scores = f"{output}.report.html", scored.scores.score
        write_report(page, scored.sentences(), scores, title=" and ".join(pairs), languages=options.languages)
        report = {**scored.report, "bad_lines": sources.bad_lines, "page": page, "histogram": histogram(scores)}
        return _finish(output, folder, report, scored.sentences())

    return _run(run, options, output, format, work, keep_work, json)


def mining_options(given: Mapping[str, Any], quiet: bool) -> MiningOptions:
    from hf_xlsr.mining.options import MiningOptions

    values = {**given, "show_progress_bar": not quiet}
    values |= {"languages": parse_languages(given["languages"]), "routes": parse_routes(given["routes"])}
    return MiningOptions(**{name: value for name, value in values.items() if value not in (None, [], {})})


def _run(
    run: Callable[[Path], dict[str, Any] | None],
    options: MiningOptions,
    output: str,
    format: str | None,
    work: str | None,
    keep_work: bool,
    as_json: bool,
) -> int:
    """Runs a verb in its work folder; 0, or 130 when interrupted."""
    import json

    from hf_xlsr.mining.outputs import check_place, output_format

    output_format(output, format, options.languages)
    check_place(output)
    folder = Path(work or f"{output}.work")
    try:
        report = run(folder)
    except KeyboardInterrupt:
        print(f"hf-xlsr: interrupted; the same command resumes from {folder}.", file=sys.stderr)
        return 130
    if report is None:  # the main process writes
        return 0
    if not (work or keep_work):
        shutil.rmtree(folder)
    if as_json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print_summary(report)
    return 0


def _finish(output: str, work: Path, report: Mapping[str, Any], rows: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """The report with the output's name and first rows; copies skipped lines from the work folder."""
    from hf_xlsr.mining.texts import SKIPPED
    from hf_xlsr.mining.work_folder import disk_errors

    saved = {}
    for side in [name for name, counts in report.items() if isinstance(counts, dict) and counts.get("skipped")]:
        saved[side] = f"{output}.{side}.{SKIPPED}"
        with disk_errors(output):
            shutil.copyfile(work / f"{side}.text" / SKIPPED, saved[side])
    return {**report, "skipped_lines": saved, "output": output, "first": list(islice(rows, 3))}


def histogram(scores: Any, threshold: float | None = None, bars: int = 40) -> str:
    """The distribution of scores in one line of blocks; a bar in front of the threshold.

    Examples:
        >>> histogram([1.0, 1.0, 1.1, 1.2], bars=3)
        '1.000 █▄▄ 1.200'
    """
    import numpy as np

    if not len(scores):
        return ""
    counts, edges = np.histogram(scores, bars)
    blocks = [BLOCKS[int(np.ceil(8 * count / counts.max()))] for count in counts.tolist()]
    if threshold is not None and edges[0] < threshold <= edges[-1]:
        blocks.insert(int(np.searchsorted(edges[:-1], threshold)), "|")
    return f"{edges[0]:.3f} {''.join(blocks)} {edges[-1]:.3f}"


def _sides(
    files: tuple[str, str], languages: Sequence[str] | None, columns: str | None, split: bool, cleaning: list[str]
) -> list[Any]:
    """Both sides for `run_mining`: files read line by line, or texts of other sources."""
    from hf_xlsr.data.columns import parse_columns
    from hf_xlsr.mining.texts import SourceTexts, is_plain

    if (split or "language" in cleaning) and not languages:
        raise XlsrError("--split-sentences and the cleaning step language need --languages, e.g. --languages en,de.")
    sides: list[Any] = []
    for file, language in zip(files, languages or (None, None), strict=True):
        if is_plain(file) and not (columns or split or cleaning):
            sides.append(file)
            continue
        named = {name: column.replace("{lang}", language or "") for name, column in parse_columns(columns).items()}
        source = {"path": file, **({"columns": named} if named else {})}
        sides.append(SourceTexts(source, language, split, tuple(cleaning)))
    return sides


def _pairs(paths: list[str], languages: Sequence[str] | None) -> list[tuple[str, str]]:
    from hf_xlsr.data.formats.reading import read_rows

    rows = read_rows(paths[0] if len(paths) == 1 else paths, languages=languages)
    return [(row["source"], row["target"]) for row in rows]


class _Column:
    """One column of the file of pairs, read again in each iteration."""

    def __init__(self, paths: list[str], columns: str | None, languages: Sequence[str] | None, name: str) -> None:
        self.paths, self.columns, self.languages, self.name = paths, columns, languages, name
        self.bad_lines = ""

    def __iter__(self) -> Iterator[str]:
        from hf_xlsr.data.formats.quarantine import Quarantine
        from hf_xlsr.data.formats.reading import read_rows

        paths, quarantine = self.paths, Quarantine()
        rows = read_rows(
            paths[0] if len(paths) == 1 else paths,
            columns=self.columns,
            languages=self.languages,
            quarantine=quarantine,
        )
        count = 0
        for row in rows:
            count += 1
            yield row[self.name]
        self.bad_lines = quarantine.report()
        if not count:
            raise XlsrError(f"{' + '.join(paths)} has no pairs: {self.bad_lines or 'it is empty or only a header.'}")


def _print_summary(report: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"{report['pairs']:,} pairs in {escape(str(report['output']))}", show_header=False)
    for name, counts in report.items():
        if isinstance(counts, dict) and "sentences" in counts:
            read = f"{counts['sentences']:,} sentences of {counts['lines']:,} lines in {escape(str(counts['name']))}"
            table.add_row(name, read)
            if counts["duplicates"]:
                table.add_row("", f"{counts['duplicates']:,} equal to others")
            for reason, entry in counts["skipped"].items():
                lines = ", ".join(map(str, entry["lines"])) + (", ..." if entry["count"] > len(entry["lines"]) else "")
                line = f"{entry['count']:,} skipped, {reason}: {lines} (all in {report['skipped_lines'][name]})"
                table.add_row("", escape(line))
    if report.get("bad_lines"):
        table.add_row("pairs", escape(report["bad_lines"]))
    recall = ""
    if report["method"] != "exact":
        margin = f" ± {report['recall_margin']:.4f}" if "recall_margin" in report else ""
        recall = f", recall {report['recall']:.4f}{margin} on a sample"
    table.add_row("search", f"{report['method']}, k {report['k']}{recall}")
    if "threshold" in report:
        scores = report["scores"]
        table.add_row("scores", f"{scores[0]:.4f} to {scores[1]:.4f}" if scores else "none")
        table.add_row("threshold", "none" if report["threshold"] is None else f"{report['threshold']:.4f}")
    if estimate := report.get("estimate"):
        low, high = (f"{100 * estimate[name]:.1f}" for name in ("low", "high"))
        recall = f", recall {100 * estimate['recall']:.1f} %" if "recall" in estimate else ""
        table.add_row("estimate", f"precision {100 * estimate['precision']:.1f} % ({low}-{high}){recall}")
        table.add_row("", f"from {estimate['basis']}")
    table.add_row("histogram", report["histogram"])
    table.add_row("report", escape(report["page"]))
    table.add_row("seconds", ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in report["seconds"].items()))
    if report["reused"]:
        table.add_row("done before", ", ".join(report["reused"]))
    console = Console()
    console.print(table)
    for row in report["first"]:
        console.print(f"{row['score']:.4f}\t{row['source']}\t{row['target']}", markup=False, highlight=False)
