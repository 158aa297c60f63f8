"""The verbs `mine` and `score` of the `hf-xlsr` command."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_xlsr.cli.values import parse_languages, parse_routes, read_vectors
from hf_xlsr.utils.errors import XlsrError


def configure_mine(parser: argparse.ArgumentParser) -> None:
    """Adds the words and options of `hf-xlsr mine`."""
    parser.add_argument("source", help="file with one sentence a line; .gz, .bz2, .xz and .zst are decompressed")
    parser.add_argument("target", help="likewise, in the other language")
    vectors = "its vectors (.npy, one row a line, real numbers) instead of a model"
    parser.add_argument("--source-vectors", metavar="FILE", help=f"SOURCE: {vectors}")
    parser.add_argument("--target-vectors", metavar="FILE", help=f"TARGET: {vectors}")
    parser.add_argument("--retrieval", default="max", help="max, intersection, forward or backward (default max)")
    parser.add_argument("--threshold", type=float, help="lowest score that counts (default none)")
    parser.add_argument("--many", action="store_true", help="a sentence may be in several pairs")
    parser.add_argument("--duplicates", help="merge, keep or drop equal lines (default merge)")
    parser.add_argument("--max-pairs", type=int, metavar="N", help="keep the N best pairs (default all)")
    _configure_common(parser)


def configure_score(parser: argparse.ArgumentParser) -> None:
    """Adds the words and options of `hf-xlsr score`."""
    parser.add_argument("pairs", nargs="+", help="file of pairs in any format that is read, or two Moses files")
    parser.add_argument("--columns", help="our column = column of the file, e.g. source=en,target=de")
    parser.add_argument("--source-pool", metavar="FILE", help="sources to compare with (default those of the pairs)")
    parser.add_argument("--target-pool", metavar="FILE", help="targets to compare with (default those of the pairs)")
    _configure_common(parser)


def _configure_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="folder or id that sentence-transformers loads")
    parser.add_argument("--languages", help="of source and target, e.g. en,de; for models that route by them, and TMX")
    parser.add_argument("--routes", help="route that a language takes where they differ in name, e.g. de=en")
    parser.add_argument("--prompt", default="", help='put before each sentence, e.g. "query: "')
    parser.add_argument("--batch-size", type=int, default=64, help="sentences encoded at a time (default 64)")
    parser.add_argument("--k", type=int, default=4, help="size of the neighbourhoods (default 4)")
    parser.add_argument("--margin", default="ratio", help="ratio, distance or absolute (default ratio)")
    parser.add_argument("--method", default="auto", help="exact, ivf or auto, which goes by size (default auto)")
    parser.add_argument(
        "--memory", metavar="SIZE", help="for all but the encoder itself, e.g. 4GB (default: what fits)"
    )
    parser.add_argument(
        "--device", help="of the model and the search, e.g. cpu or cuda (default: a GPU if there is one)"
    )
    parser.add_argument(
        "--dtype", help="float32, bfloat16, float16 (default: as the model's files), onnx or onnx-int8"
    )
    parser.add_argument("--output", required=True, help="file of pairs, .tsv, .jsonl, .parquet or .tmx")
    parser.add_argument("--format", help="of the output (default by its suffix)")
    parser.add_argument("--work", metavar="FOLDER", help="where stages leave what is done (default OUTPUT.work)")
    parser.add_argument(
        "--keep-work", action="store_true", help="keep the default work folder; one named is kept anyway"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def mine(options: argparse.Namespace, rest: list[str]) -> int:
    """Mines two texts and writes the pairs; 0, or 130 when interrupted."""
    return _run(options, _mine)


def score(options: argparse.Namespace, rest: list[str]) -> int:
    """Scores the pairs of a file and writes them; 0, or 130 when interrupted."""
    return _run(options, _score)


def _run(options: argparse.Namespace, verb: Callable[[argparse.Namespace, Path], dict[str, Any] | None]) -> int:
    from hf_xlsr.mining.outputs import check_place, output_format

    options.languages = parse_languages(options.languages) or None
    options.routes = parse_routes(options.routes) or None
    output_format(options.output, options.format, options.languages)
    check_place(options.output)
    work = Path(options.work or f"{options.output}.work")
    try:
        report = verb(options, work)
    except KeyboardInterrupt:
        print(f"hf-xlsr: interrupted; the same command goes on from {work}.", file=sys.stderr)
        return 130
    if report is None:  # another process writes
        return 0
    if not (options.work or options.keep_work):
        shutil.rmtree(work)
    if options.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print_summary(report)
    return 0


def _mine(options: argparse.Namespace, work: Path) -> dict[str, Any] | None:
    from hf_xlsr.mining.outputs import write_pairs
    from hf_xlsr.mining.pipeline import MiningSettings, run_mining

    settings = MiningSettings(
        encoder=options.model,
        vectors=_vectors(options),
        languages=options.languages,
        k=options.k,
        margin=options.margin,
        retrieval=options.retrieval,
        threshold=options.threshold,
        one_to_one=not options.many,
        duplicates=options.duplicates,
        max_pairs=options.max_pairs,
        method=options.method,
        memory=options.memory,
        device=options.device,
        dtype=options.dtype,
        batch_size=options.batch_size,
        prompt=options.prompt,
        routes=options.routes,
        show_progress_bar=not options.json,
    )
    run = run_mining(options.source, options.target, work, settings)
    if not run.leader:
        return None
    head = _Head(run.sentences())
    write_pairs(options.output, head, format=options.format, languages=settings.languages)
    return _finish(options, work, run.report, head)


def _score(options: argparse.Namespace, work: Path) -> dict[str, Any] | None:
    from hf_xlsr.mining.outputs import SCORE_COLUMNS, write_pairs
    from hf_xlsr.mining.scoring import run_scoring

    if options.model is None:
        raise XlsrError("sentences become vectors by a model, but none is given; give --model.")
    sources, targets = _Column(options, "source"), _Column(options, "target")
    run = run_scoring(
        sources,
        targets,
        {"source_pool": options.source_pool, "target_pool": options.target_pool},
        work,
        encoder=options.model,
        languages=options.languages,
        k=options.k,
        margin=options.margin,
        method=options.method,
        memory=options.memory,
        device=options.device,
        dtype=options.dtype,
        encoding={
            "prompt": options.prompt,
            "batch_size": options.batch_size,
            "routes": options.routes,
            "show_progress_bar": not options.json,
        },
    )
    if not run.leader:
        return None
    head = _Head(run.sentences())
    write_pairs(options.output, head, columns=SCORE_COLUMNS, format=options.format, languages=options.languages)
    return _finish(options, work, {**run.report, "bad_lines": sources.bad_lines}, head)


def _finish(options: argparse.Namespace, work: Path, report: Mapping[str, Any], head: _Head) -> dict[str, Any]:
    """The report with what the command adds; lines that were skipped are saved from the work folder."""
    from hf_xlsr.mining.texts import SKIPPED
    from hf_xlsr.mining.work_folder import disk_errors

    saved = {}
    for side in [name for name, counts in report.items() if isinstance(counts, dict) and counts.get("skipped")]:
        saved[side] = f"{options.output}.{side}.{SKIPPED}"
        with disk_errors(options.output):
            shutil.copyfile(work / f"{side}.text" / SKIPPED, saved[side])
    return {**report, "skipped_lines": saved, "output": str(options.output), "first": head.first}


class _Head:
    """Passes rows on and remembers the first ones."""

    def __init__(self, rows: Iterator[dict[str, Any]], size: int = 3) -> None:
        self.rows, self.size = rows, size
        self.first: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self.rows:
            if len(self.first) < self.size:
                self.first.append(row)
            yield row


class _Column:
    """One column of the file of pairs, read anew each time it is gone through."""

    def __init__(self, options: argparse.Namespace, name: str) -> None:
        self.options, self.name = options, name
        self.bad_lines = ""

    def __iter__(self) -> Iterator[str]:
        from hf_xlsr.data.formats.quarantine import Quarantine
        from hf_xlsr.data.formats.reading import read_rows

        paths, quarantine = self.options.pairs, Quarantine()
        rows = read_rows(
            paths[0] if len(paths) == 1 else paths,
            columns=self.options.columns,
            languages=self.options.languages,
            quarantine=quarantine,
        )
        empty = True
        for row in rows:
            empty = False
            yield row[self.name]
        self.bad_lines = quarantine.report()
        if empty:
            why = self.bad_lines.rstrip(".") or "it is empty, or has a header alone"
            raise XlsrError(f"{' + '.join(paths)} has no pair: {why}; give another file.")


def _vectors(options: argparse.Namespace) -> Any:
    """Both matrices, memory-mapped; None without the options."""
    files = options.source_vectors, options.target_vectors
    if files == (None, None):
        return None
    if None in files:
        raise XlsrError("vectors of one side only are given; give --source-vectors and --target-vectors, or --model.")
    return tuple(map(read_vectors, files))


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
                told = f"{entry['count']:,} skipped, {reason}: {lines} (all in {report['skipped_lines'][name]})"
                table.add_row("", escape(told))
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
