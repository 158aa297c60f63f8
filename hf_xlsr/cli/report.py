"""What `mine` and `score` leave and print: pairs, skipped lines, a page with samples, and a summary."""

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hf_xlsr.mining.pipeline import MiningRun
    from hf_xlsr.mining.scoring import ScoringRun


@dataclass(kw_only=True)
class OutputOptions:
    """Where `mine` and `score` write, and how."""

    output: Annotated[str, typer.Option(help="File of pairs: .tsv, .jsonl, .parquet or .tmx.")]
    format: Annotated[str | None, typer.Option(help="Format of the output; by default by its suffix.")] = None
    work: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Folder to resume from; by default OUTPUT.work.")
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False

    @property
    def folder(self) -> Path:
        return Path(self.work or f"{self.output}.work")

    def check_output(self, languages: Sequence[str] | None) -> None:
        """Raises an error for a file that cannot be written, or in no known format."""
        from hf_xlsr.mining.outputs import output_format
        from hf_xlsr.utils.files import check_writable

        output_format(self.output, self.format, languages)
        check_writable(self.output, "--output")

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """Ends with status 130 when interrupted."""
        try:
            yield
        except KeyboardInterrupt:
            print(f"hf-xlsr: interrupted; the same command resumes from {self.folder}.", file=sys.stderr)
            raise typer.Exit(130) from None

    def write(
        self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str], languages: Sequence[str] | None
    ) -> dict[str, Any]:
        """Writes some columns of the pairs; returns the number of pairs and the first three, for the report."""
        from hf_xlsr.mining.outputs import write_pairs

        pairs = ({name: row[name] for name in columns} for row in rows)
        first_pairs = list(islice(pairs, 3))
        all_pairs = chain(first_pairs, pairs)
        count = write_pairs(self.output, all_pairs, columns=columns, format=self.format, languages=languages)
        return {"pairs": count, "output": self.output, "first": first_pairs}

    def finish(
        self,
        run: "MiningRun | ScoringRun",
        scores: Any,
        report: Mapping[str, Any],
        *,
        title: str,
        languages: Sequence[str] | None,
    ) -> None:
        """Writes the skipped lines, and the page with samples of all pairs; prints the report.

        Args:
            run: What was mined or scored.
            scores: Of all pairs, also of those that are not written.
            report: Facts of the run by name, with those of `write`.
            title: Of the page.
            languages: Source and target.
        """
        from hf_xlsr.mining.outputs import write_report

        page = f"{self.output}.report.html"
        write_report(
            page, run.sentences(), scores, run.curve, report.get("threshold"), title=title, languages=languages
        )
        summary = {**report, "skipped_lines": self._copy_skipped(report), "page": page}
        if not self.work:
            shutil.rmtree(self.folder)

        if self.json:
            print(json.dumps(summary, indent=2, ensure_ascii=False))
        else:
            print_summary(summary)

    def _copy_skipped(self, report: Mapping[str, Any]) -> dict[str, str]:
        """Saves the skipped lines of each side that has some; file by side."""
        from hf_xlsr.mining.texts import SKIPPED
        from hf_xlsr.mining.work_folder import disk_errors

        files = {}
        for side, counts in report.items():
            if isinstance(counts, dict) and counts.get("skipped"):
                files[side] = f"{self.output}.{side}.{SKIPPED}"
                with disk_errors(self.output):
                    shutil.copyfile(self.folder / f"{side}.text" / SKIPPED, files[side])
        return files


def print_summary(summary: Mapping[str, Any]) -> None:
    """Prints the report of `mine` or `score` as a table, and the first pairs."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"{summary['pairs']:,} pairs in {escape(str(summary['output']))}", show_header=False)
    for name, line in chain(_input_lines(summary), _search_lines(summary)):
        table.add_row(name, escape(line))
    console = Console()
    console.print(table)
    for row in summary["first"]:
        console.print(f"{row['score']:.4f}\t{row['source']}\t{row['target']}", markup=False, highlight=False)


def _input_lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Heading and text of the lines on what was read."""
    from hf_xlsr.mining.texts import counted

    for name, counts in summary.items():
        if not isinstance(counts, dict) or "sentences" not in counts:
            continue
        yield name, f"{counts['sentences']:,} sentences of {counts['lines']:,} lines in {counts['name']}"
        if counts["duplicates"]:
            yield "", f"{counts['duplicates']:,} equal to others"
        if counts.get("bad_lines"):
            yield "", counts["bad_lines"]
        if counts["skipped"]:
            yield "", f"skipped: {counted(counts['skipped'])}, see {summary['skipped_lines'][name]}"
    if summary.get("bad_lines"):
        yield "pairs", summary["bad_lines"]


def _search_lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Heading and text of the lines on the search and its result."""
    recall = ""
    if summary["method"] != "exact":
        margin = summary.get("recall_margin", 0.0)
        recall = f", recall {summary['recall']:.4f} ± {margin:.4f} on a sample"
    yield "search", f"{summary['method']}, k {summary['k']}{recall}"

    threshold = summary["threshold"]
    yield "threshold", "none" if threshold is None else f"{threshold:.4f}"
    estimate = summary["estimate"]
    for name, low, high in (("precision", "low", "high"), ("recall", "recall_low", "recall_high")):
        if name in estimate:
            yield name, f"{100 * estimate[name]:.1f} % ({100 * estimate[low]:.1f}-{100 * estimate[high]:.1f})"
    if estimate:
        yield "", f"from {estimate['basis']}"

    yield "report", summary["page"]
    yield "seconds", ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in summary["seconds"].items())
    if summary["reused"]:
        yield "done before", ", ".join(summary["reused"])
