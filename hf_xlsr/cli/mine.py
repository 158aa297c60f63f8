"""The verbs `mine` and `score` of the `hf-xlsr` command."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_xlsr.cli.options import (
    MODEL,
    REQUIRED,
    extended,
    keyword,
    parse_languages,
    parse_prompts,
    parse_routes,
    read_vectors,
    shared,
)
from hf_xlsr.encoders.encoding import BATCH_SIZE
from hf_xlsr.utils.errors import XlsrError

if TYPE_CHECKING:
    from hf_xlsr.mining.pipeline import MiningRun
    from hf_xlsr.mining.scoring import ScoringRun

    Run = MiningRun | ScoringRun

Row = dict[str, Any]
SEARCH, CHOOSING = {"rich_help_panel": "Search"}, {"rich_help_panel": "Choosing the threshold"}
BLOCKS = " ▁▂▃▄▅▆▇█"
Model = Annotated[str | None, typer.Option(help=MODEL)]
VectorsFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="Embeddings of this side instead of a model: .npy, a row per line.")
]
Pool = Annotated[
    str | None, typer.Option(metavar="FILE", help="Sentences to compare with; by default the pairs' own.")
]
Labels = Annotated[str | None, typer.Option(help="Labels saved from the report.", **CHOOSING)]
Precision = Annotated[
    float | None, typer.Option(help="Precision to reach; by default the F1 is the best.", **CHOOSING)
]
COMMON = [
    keyword("output", str, REQUIRED, "File of pairs: .tsv, .jsonl, .parquet or .tmx."),
    keyword("format", str | None, None, "Format of the output; by default by its suffix."),
    keyword("work", str | None, None, "Folder to resume from; by default OUTPUT.work.", metavar="FOLDER"),
    keyword("json", bool, False, "Print the summary as JSON."),
    keyword("vectors", str | None, None, "Embeddings that other commands share; filled as well.", metavar="FOLDER"),
    *shared("languages", "prompt", "routes", "batch_size", "device", "dtype", batch_size=BATCH_SIZE),
    keyword("k", int | None, None, "Size of the neighbourhoods (default 4).", **SEARCH),
    keyword("margin", str | None, None, "ratio, distance or absolute (default ratio).", **SEARCH),
    keyword("method", str | None, None, "exact, ivf or auto, which depends on the size (default auto).", **SEARCH),
    keyword("recall", float | None, None, "Share of neighbours that ivf must find on a sample, e.g. 0.98.", **SEARCH),
    keyword("memory", str | None, None, "Memory for mining, besides the model, e.g. 4GB.", **SEARCH),
    keyword("threshold", float | None, None, "Lowest score to keep; by default all.", **CHOOSING),
]
EXTRACTION = [
    keyword("retrieval", str | None, None, "max, intersection, forward or backward (default max).", **SEARCH),
    keyword("duplicates", str | None, None, "merge or keep equal lines (default merge).", **SEARCH),
    keyword("max_pairs", int | None, None, "Number of best pairs to keep.", metavar="N", **SEARCH),
]


@extended(*COMMON, *EXTRACTION)
def mine(
    source: Annotated[
        str, typer.Argument(help="One sentence per line, also compressed; or a table or dataset with a column `text`.")
    ],
    target: Annotated[str, typer.Argument(help="The same in the other language.")],
    model: Model = None,
    source_vectors: VectorsFile = None,
    target_vectors: VectorsFile = None,
    known: Annotated[
        list[str] | None, typer.Option(help="Translations in any format, hidden among the sentences.", **CHOOSING)
    ] = None,
    gold: Annotated[
        list[str] | None, typer.Option(help="All translations between the two texts, in any format.", **CHOOSING)
    ] = None,
    labels: Labels = None,
    precision: Precision = None,
    many: Annotated[bool, typer.Option("--many", help="Use a sentence in several pairs.", **SEARCH)] = False,
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
    **given: Any,
) -> None:
    """Find translations in two texts."""
    from hf_xlsr.mining.outputs import LINE_COLUMNS, PAIR_COLUMNS, read_labels
    from hf_xlsr.mining.pipeline import run_mining
    from hf_xlsr.mining.texts import clean_pairs
    from hf_xlsr.mining.thresholds import label_curve
    from hf_xlsr.runs.inputs import check_named

    if (source_vectors is None) != (target_vectors is None):
        raise XlsrError("Give both --source-vectors and --target-vectors.")
    output = _Output(given | ({"one_to_one": False} if many else {}), precision, known, gold, labels)
    options, languages = output.options, output.options.languages
    steps = [step.strip() for step in (cleaning or "").split(",") if step.strip()]
    sides = _sides((source, target), languages, columns, split_sentences, steps)
    files = {"--source-vectors": source_vectors, "--target-vectors": target_vectors, "--known": known, "--gold": gold}
    check_named(model, {"SOURCE": source, "TARGET": target, "--labels": labels, **files})
    with output.resumable():
        vectors = None
        if source_vectors and target_vectors:
            vectors = read_vectors(source_vectors), read_vectors(target_vectors)
        pairs = _pairs(known, languages, sides, steps) if known else None
        mined = run_mining(sides[0], sides[1], output.folder, options, encoder=model, vectors=vectors, known=pairs)
        if not mined.is_main:
            return
        if gold:
            mined = replace(mined, curve=mined.gold_curve(_pairs(gold, languages, sides, steps)))
        elif labels:
            mined = replace(mined, curve=label_curve(read_labels(labels), mined.sentences()))
        chosen = mined.chosen(options, precision)
        counts: dict[str, Any] = {}
        read = {name: getattr(side, "report", {}) for name, side in zip(("source", "target"), sides, strict=True)}
        for name, report in read.items():
            chosen.report[name]["bad_lines"] = report.get("bad_lines", "")
        if steps:
            chosen.report["cleaning"] = {**read, "pairs": counts}
        # Rows of a table may be skipped, split or removed, so the numbers of its sentences are not those of its rows.
        shown = [name for name in PAIR_COLUMNS if not (name in LINE_COLUMNS and read[name.removesuffix("_line")])]
        kept = clean_pairs(chosen.sentences(), steps, languages, counts)
        rows, title = ({name: row[name] for name in shown} for row in kept), f"{source} and {target}"
        output.finish(chosen.report, rows, mined, mined.rows.score, title, shown)


@extended(*COMMON)
def score(
    pairs: Annotated[list[str], typer.Argument(help="File of pairs in any supported format, or two Moses files.")],
    model: Annotated[str, typer.Option(help=MODEL)],
    columns: Annotated[str | None, typer.Option(help="Our column = column of the file: source=en,target=de.")] = None,
    source_pool: Pool = None,
    target_pool: Pool = None,
    labels: Labels = None,
    precision: Precision = None,
    **given: Any,
) -> None:
    """Score given pairs by margin and cosine."""
    from hf_xlsr.mining.outputs import SCORE_COLUMNS, read_labels
    from hf_xlsr.mining.scoring import run_scoring
    from hf_xlsr.mining.thresholds import label_curve
    from hf_xlsr.runs.inputs import check_named

    output = _Output(given, precision, labels)
    pools = {"source_pool": source_pool, "target_pool": target_pool}
    named = {"PAIRS": pairs, "--labels": labels, "--source-pool": source_pool, "--target-pool": target_pool}
    check_named(model, named)
    sources, targets = (_Column(pairs, columns, output.options.languages, side) for side in ("source", "target"))
    with output.resumable():
        scored = run_scoring(sources, targets, pools, output.folder, output.options, encoder=model)
        if scored.is_main:
            threshold, estimate = output.options.threshold, dict[str, Any]()
            if labels:
                scored.curve = label_curve(read_labels(labels), scored.sentences())
                threshold, estimate = scored.curve.chosen(threshold, precision)
            report = scored.report | {"threshold": threshold, "estimate": estimate, "bad_lines": sources.bad_lines}
            rows = (row for row in scored.sentences() if threshold is None or row["score"] >= threshold)
            output.finish(report, rows, scored, scored.scores.score, " and ".join(pairs), SCORE_COLUMNS)


class _Output:
    """The options that `mine` and `score` share, and what both write."""

    def __init__(self, given: Mapping[str, Any], precision: float | None, *bases: Any) -> None:
        from hf_xlsr.mining.options import MiningOptions
        from hf_xlsr.mining.outputs import output_format
        from hf_xlsr.utils.files import check_writable

        if sum(map(bool, bases)) > 1 or (precision is not None and not any(bases)):
            raise XlsrError("Give at most one of --known, --gold and --labels; --precision needs one of them.")
        values = {**given, "show_progress_bar": not given["json"]}
        values |= {"languages": parse_languages(given["languages"]), "routes": parse_routes(given["routes"])}
        values["prompt"] = parse_prompts(given["prompt"])
        self.path, self.format, work, self.as_json = map(values.pop, ("output", "format", "work", "json"))
        self.folder, self.keep = Path(work or f"{self.path}.work"), bool(work)
        self.options = MiningOptions(**{name: value for name, value in values.items() if value not in (None, [], {})})
        output_format(self.path, self.format, self.options.languages)
        check_writable(self.path, "--output")

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """Ends with status 130 when interrupted."""
        try:
            yield
        except KeyboardInterrupt:
            print(f"hf-xlsr: interrupted; the same command resumes from {self.folder}.", file=sys.stderr)
            raise typer.Exit(130) from None

    def finish(
        self, report: Row, rows: Iterator[Row], run: Run, scores: Any, title: str, columns: Sequence[str]
    ) -> None:
        """Writes the pairs, the skipped lines, and the page with samples of all pairs; prints the report."""
        from hf_xlsr.mining.outputs import write_pairs, write_report
        from hf_xlsr.mining.texts import SKIPPED
        from hf_xlsr.mining.work_folder import disk_errors

        languages, threshold, page = self.options.languages, report.get("threshold"), f"{self.path}.report.html"
        first = list(islice(rows, 3))
        shape: dict[str, Any] = {"columns": columns, "format": self.format, "languages": languages}
        report["pairs"] = write_pairs(self.path, chain(first, rows), **shape)
        saved = {}
        for side in [name for name, counts in report.items() if isinstance(counts, dict) and counts.get("skipped")]:
            saved[side] = f"{self.path}.{side}.{SKIPPED}"
            with disk_errors(self.path):
                shutil.copyfile(self.folder / f"{side}.text" / SKIPPED, saved[side])
        write_report(page, run.sentences(), scores, run.curve, threshold, title=title, languages=languages)
        report |= {"skipped_lines": saved, "output": self.path, "first": first, "page": page}
        report["histogram"] = histogram(scores, threshold)
        if not self.keep:
            shutil.rmtree(self.folder)
        if self.as_json:
            print(json.dumps(report, indent=2, ensure_ascii=False))
        else:
            _print_summary(report)


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
        source = {"path": file, "columns": named or None, "format": "moses" if is_plain(file) else None}
        sides.append(SourceTexts(source, language, split, tuple(cleaning)))
    return sides


def _rows(paths: list[str], languages: Sequence[str] | None, **options: Any) -> Iterator[dict[str, Any]]:
    from hf_xlsr.data.formats.reading import read_rows

    return read_rows(paths[0] if len(paths) == 1 else paths, languages=languages, **options)


def _pairs(
    paths: list[str], languages: Sequence[str] | None, sides: Sequence[Any], cleaning: list[str]
) -> list[tuple[str, str]]:
    """Translations, with each text in the form in which its side is read."""
    from hf_xlsr.data.cleaning import Cleaner, build_steps

    normalization = build_steps([step for step in cleaning if step == "normalize"])
    rows = Cleaner(normalization)(_rows(paths, languages))
    forms: list[Any] = [str if isinstance(side, str) else lambda text: " ".join(text.split()) for side in sides]
    return [(forms[0](row["source"]), forms[1](row["target"])) for row in rows]


class _Column:
    """One column of the file of pairs, read again in each iteration."""

    def __init__(self, paths: list[str], columns: str | None, languages: Sequence[str] | None, name: str) -> None:
        self.paths, self.columns, self.languages, self.name = paths, columns, languages, name
        self.bad_lines = ""

    def __iter__(self) -> Iterator[str]:
        from hf_xlsr.data.formats.quarantine import Quarantine

        quarantine, count = Quarantine(), 0
        for row in _rows(self.paths, self.languages, columns=self.columns, quarantine=quarantine):
            count += 1
            yield row[self.name]
        self.bad_lines = quarantine.report()
        if not count:
            reason = self.bad_lines or "it is empty or only a header."
            raise XlsrError(f"{' + '.join(self.paths)} has no pairs: {reason}")


def _print_summary(report: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from hf_xlsr.mining.texts import counted

    lines: list[tuple[str, str]] = []
    for name, counts in report.items():
        if isinstance(counts, dict) and "sentences" in counts:
            lines.append((name, f"{counts['sentences']:,} sentences of {counts['lines']:,} lines in {counts['name']}"))
            if counts["duplicates"]:
                lines.append(("", f"{counts['duplicates']:,} equal to others"))
            if counts.get("bad_lines"):
                lines.append(("", counts["bad_lines"]))
            if counts["skipped"]:
                lines.append(("", f"skipped: {counted(counts['skipped'])}, see {report['skipped_lines'][name]}"))
    if report.get("bad_lines"):
        lines.append(("pairs", report["bad_lines"]))
    recall = ""
    if report["method"] != "exact":
        margin = f" ± {report['recall_margin']:.4f}" if "recall_margin" in report else ""
        recall = f", recall {report['recall']:.4f}{margin} on a sample"
    lines.append(("search", f"{report['method']}, k {report['k']}{recall}"))
    if "threshold" in report:
        lines.append(("threshold", "none" if report["threshold"] is None else f"{report['threshold']:.4f}"))
    if estimate := report.get("estimate"):
        intervals = {"precision": ("low", "high"), "recall": ("recall_low", "recall_high")}
        found = [
            f"{name} {100 * estimate[name]:.1f} % ({100 * estimate[low]:.1f}-{100 * estimate[high]:.1f})"
            for name, (low, high) in intervals.items()
            if name in estimate
        ]
        lines += [("estimate", ", ".join(found)), ("", f"from {estimate['basis']}")]
    seconds = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in report["seconds"].items())
    lines += [("histogram", report["histogram"]), ("report", report["page"]), ("seconds", seconds)]
    if report["reused"]:
        lines.append(("done before", ", ".join(report["reused"])))
    table = Table(title=f"{report['pairs']:,} pairs in {escape(str(report['output']))}", show_header=False)
    for name, line in lines:
        table.add_row(name, escape(line))
    console = Console()
    console.print(table)
    for row in report["first"]:
        console.print(f"{row['score']:.4f}\t{row['source']}\t{row['target']}", markup=False, highlight=False)
