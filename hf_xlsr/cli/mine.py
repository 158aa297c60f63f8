"""Commands `hf-xlsr mine` and `hf-xlsr score`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_xlsr.cli.values import parse_languages, parse_routes, read_vectors
from hf_xlsr.utils.errors import XlsrError

if TYPE_CHECKING:
    from hf_xlsr.mining.options import MiningOptions


def configure_mine(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hf-xlsr mine`."""
    parser.add_argument("source", help="file with one sentence per line; .gz, .bz2, .xz and .zst are decompressed")
    parser.add_argument("target", help="likewise, in the other language")
    vectors = "its vectors (.npy, one row of real numbers per line) instead of a model"
    parser.add_argument("--source-vectors", metavar="FILE", help=f"SOURCE: {vectors}")
    parser.add_argument("--target-vectors", metavar="FILE", help=f"TARGET: {vectors}")
    parser.add_argument("--retrieval", help="max, intersection, forward or backward (default max)")
    parser.add_argument("--threshold", type=float, help="lowest score that is kept (default: keep all)")
    parser.add_argument("--many", dest="one_to_one", action="store_false", help="use a sentence in several pairs")
    parser.add_argument("--duplicates", help="merge, keep or drop equal lines (default merge)")
    parser.add_argument("--max-pairs", type=int, metavar="N", help="number of best pairs to keep (default all)")
    _configure_common(parser)


def configure_score(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hf-xlsr score`."""
    parser.add_argument("pairs", nargs="+", help="file of pairs in any supported format, or two Moses files")
    parser.add_argument("--columns", help="our column = column of the file, e.g. source=en,target=de")
    parser.add_argument("--source-pool", metavar="FILE", help="sources to compare with (default: those of the pairs)")
    parser.add_argument("--target-pool", metavar="FILE", help="targets to compare with (default: those of the pairs)")
    _configure_common(parser)


def _configure_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="folder or Hub id that sentence-transformers loads")
    parser.add_argument(
        "--languages", help="source and target, e.g. en,de; for models that route by language, and TMX"
    )
    parser.add_argument("--routes", help="route of a language if their names differ, e.g. de=en")
    parser.add_argument("--prompt", help='put before each sentence, e.g. "query: "')
    parser.add_argument("--batch-size", type=int, help="sentences encoded at a time (default 64)")
    parser.add_argument("--k", type=int, help="size of the neighbourhoods (default 4)")
    parser.add_argument("--margin", help="ratio, distance or absolute (default ratio)")
    parser.add_argument("--method", help="exact, ivf or auto, which depends on the size (default auto)")
    parser.add_argument("--memory", metavar="SIZE", help="memory for mining, besides the model, e.g. 4GB")
    parser.add_argument("--device", help="of model and search, e.g. cpu or cuda (default: a GPU if there is one)")
    parser.add_argument("--dtype", help="float32, bfloat16, float16 (default: as in the files), onnx or onnx-int8")
    parser.add_argument("--output", required=True, help="file of pairs, .tsv, .jsonl, .parquet or .tmx")
    parser.add_argument("--format", help="of the output (default: by its suffix)")
    parser.add_argument("--work", metavar="FOLDER", help="folder to resume from (default OUTPUT.work)")
    parser.add_argument("--keep-work", action="store_true", help="keep the default work folder, too")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def mine(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Mines two texts and writes the pairs; 0, or 130 when interrupted."""
    return _run(arguments, _mine)


def score(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Scores the pairs of a file and writes them; 0, or 130 when interrupted."""
    return _run(arguments, _score)


Verb = Callable[[argparse.Namespace, "MiningOptions", Path], "dict[str, Any] | None"]


def _run(arguments: argparse.Namespace, verb: Verb) -> int:
    from dataclasses import fields

    from hf_xlsr.mining.options import MiningOptions
    from hf_xlsr.mining.outputs import check_place, output_format

    given = {**vars(arguments), "show_progress_bar": not arguments.json}
    given |= {"languages": parse_languages(arguments.languages), "routes": parse_routes(arguments.routes)}
    names = {field.name for field in fields(MiningOptions) if given.get(field.name) not in (None, [], {})}
    options = MiningOptions(**{name: given[name] for name in names})
    output_format(arguments.output, arguments.format, options.languages)
    check_place(arguments.output)
    work = Path(arguments.work or f"{arguments.output}.work")
    try:
        report = verb(arguments, options, work)
    except KeyboardInterrupt:
        print(f"hf-xlsr: interrupted; the same command resumes from {work}.", file=sys.stderr)
        return 130
    if report is None:  # the main process writes
        return 0
    if not (arguments.work or arguments.keep_work):
        shutil.rmtree(work)
    if arguments.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print_summary(report)
    return 0


def _mine(arguments: argparse.Namespace, options: MiningOptions, work: Path) -> dict[str, Any] | None:
    from hf_xlsr.mining.outputs import write_pairs
    from hf_xlsr.mining.pipeline import run_mining

    files = arguments.source_vectors, arguments.target_vectors
    if files.count(None) == 1:
        raise XlsrError("Vectors of one side are missing: give both --source-vectors and --target-vectors.")
    vectors = None if None in files else (read_vectors(files[0]), read_vectors(files[1]))
    run = run_mining(arguments.source, arguments.target, work, options, encoder=arguments.model, vectors=vectors)
    if not run.is_main:
        return None
    head = _Head(run.sentences())
    write_pairs(arguments.output, head, format=arguments.format, languages=options.languages)
    return _finish(arguments, work, run.report, head)


def _score(arguments: argparse.Namespace, options: MiningOptions, work: Path) -> dict[str, Any] | None:
    from hf_xlsr.mining.outputs import SCORE_COLUMNS, write_pairs
    from hf_xlsr.mining.scoring import run_scoring

    if arguments.model is None:
        raise XlsrError("`--model` is required: it encodes the sentences.")
    sources, targets = _Column(arguments, "source"), _Column(arguments, "target")
    pools = {name: getattr(arguments, name) for name in ("source_pool", "target_pool")}
    run = run_scoring(sources, targets, pools, work, options, encoder=arguments.model)
    if not run.is_main:
        return None
    head = _Head(run.sentences())
    write_pairs(arguments.output, head, columns=SCORE_COLUMNS, format=arguments.format, languages=options.languages)
    return _finish(arguments, work, {**run.report, "bad_lines": sources.bad_lines}, head)


def _finish(arguments: argparse.Namespace, work: Path, report: Mapping[str, Any], head: _Head) -> dict[str, Any]:
    """The report with the output's name and first rows; copies skipped lines out of the work folder."""
    from hf_xlsr.mining.texts import SKIPPED
    from hf_xlsr.mining.work_folder import disk_errors

    saved = {}
    for side in [name for name, counts in report.items() if isinstance(counts, dict) and counts.get("skipped")]:
        saved[side] = f"{arguments.output}.{side}.{SKIPPED}"
        with disk_errors(arguments.output):
            shutil.copyfile(work / f"{side}.text" / SKIPPED, saved[side])
    return {**report, "skipped_lines": saved, "output": str(arguments.output), "first": head.first}


class _Head:
    """Rows, of which the first ones are remembered."""

    def __init__(self, rows: Iterator[dict[str, Any]], size: int = 3) -> None:
        self.rows, self.size = rows, size
        self.first: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self.rows:
            if len(self.first) < self.size:
                self.first.append(row)
            yield row


class _Column:
    """One column of the file of pairs, read again in each iteration."""

    def __init__(self, arguments: argparse.Namespace, name: str) -> None:
        self.arguments, self.name = arguments, name
        self.bad_lines = ""

    def __iter__(self) -> Iterator[str]:
        from hf_xlsr.data.formats.quarantine import Quarantine
        from hf_xlsr.data.formats.reading import read_rows

        paths, quarantine = self.arguments.pairs, Quarantine()
        rows = read_rows(
            paths[0] if len(paths) == 1 else paths,
            columns=self.arguments.columns,
            languages=parse_languages(self.arguments.languages) or None,
            quarantine=quarantine,
        )
        empty = True
        for row in rows:
            empty = False
            yield row[self.name]
        self.bad_lines = quarantine.report()
        if empty:
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
    recall = f", recall {report['recall']:.4f} on a sample" if report["method"] != "exact" else ""
    table.add_row("search", f"{report['method']}, k {report['k']}{recall}")
    if "threshold" in report:
        scores = report["scores"]
        table.add_row("scores", f"{scores[0]:.4f} to {scores[1]:.4f}" if scores else "none")
        table.add_row("threshold", "none" if report["threshold"] is None else f"{report['threshold']:g}")
    table.add_row("seconds", ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in report["seconds"].items()))
    if report["reused"]:
        table.add_row("done before", ", ".join(report["reused"]))
    console = Console()
    console.print(table)
    for row in report["first"]:
        console.print(f"{row['score']:.4f}\t{row['source']}\t{row['target']}", markup=False, highlight=False)
