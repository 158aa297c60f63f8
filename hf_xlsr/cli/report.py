"""What `mine` and `score` leave and print: pairs, skipped lines, a page with samples, and a summary."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_xlsr.utils.console import SafeConsole, say, warn

SIDES = ("source", "target", "source_pool", "target_pool")

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

    @property
    def written(self) -> list[str]:
        """All files that may be written."""
        from hf_xlsr.mining.facts import facts_file

        skipped = [self._skipped_file(side) for side in SIDES]
        return [self.output, f"{self.output}.report.html", str(facts_file(self.output)), *skipped]

    def _skipped_file(self, side: str) -> str:
        from hf_xlsr.mining.texts import SKIPPED

        return f"{self.output}.{side}.{SKIPPED}"

    def check_output(self, languages: Sequence[str] | None) -> None:
        """Raises an error for a file that cannot be written, or in no known format."""
        from hf_xlsr.mining.outputs import output_format
        from hf_xlsr.utils.files import check_writable

        output_format(self.output, self.format, languages)
        check_writable(self.output, "--output")

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """Says how to resume when interrupted."""
        try:
            yield
        except KeyboardInterrupt:
            warn(f"hf-xlsr: interrupted; the same command resumes from {self.folder}.")
            raise

    def write(
        self,
        rows: Iterable[Mapping[str, Any]],
        columns: Sequence[str],
        languages: Sequence[str] | None,
    ) -> dict[str, Any]:
        """Writes some columns of the pairs; returns the number of pairs and the first three, for the report."""
        from hf_xlsr.mining.outputs import write_pairs

        pairs = ({name: row[name] for name in columns} for row in rows)
        first_pairs = list(islice(pairs, 3))
        all_pairs = chain(first_pairs, pairs)
        count = write_pairs(
            self.output,
            all_pairs,
            columns=columns,
            format=self.format,
            languages=languages,
        )
        return {"pairs": count, "output": self.output, "first": first_pairs}

    def finish(
        self,
        run: "MiningRun | ScoringRun",
        scores: Any,
        report: Mapping[str, Any],
        *,
        title: str,
        languages: Sequence[str] | None,
        step: Mapping[str, Any],
        inputs: Iterable[str] = (),
    ) -> None:
        """Writes the skipped lines, the page with samples of all pairs, and the facts; prints the report.

        Args:
            run: What was mined or scored.
            scores: Of all pairs, also of those that are not written.
            report: Facts of the run by name, with those of `write`.
            title: Of the page.
            languages: Source and target.
            step: What the verb did, for the file of facts.
            inputs: Files of pairs that the verb read.
        """
        from hf_xlsr.mining.facts import write_facts
        from hf_xlsr.mining.outputs import write_report

        page = f"{self.output}.report.html"
        write_report(
            page,
            run.sentences(),
            scores,
            run.curve,
            report.get("threshold"),
            title=title,
            languages=languages,
        )
        write_facts(self.output, dict(step), inputs, page)
        summary = {**report, "skipped_lines": self._copy_skipped(report), "page": page}
        if not self.work:
            shutil.rmtree(self.folder)

        if self.json:
            say(json.dumps(summary, indent=2))  # programs read it: escapes keep the exact text
            return
        first_pairs = summary.pop("first")
        print_facts(summary)
        for row in first_pairs:
            say(f"{row['score']:.4f}\t{row['source']}\t{row['target']}")

    def _copy_skipped(self, report: Mapping[str, Any]) -> dict[str, str]:
        """Saves the skipped lines of each side that has some; file by side."""
        from hf_xlsr.mining.texts import SKIPPED
        from hf_xlsr.utils.files import copy_file

        files = {}
        for side, counts in report.items():
            if isinstance(counts, dict) and counts.get("skipped"):
                files[side] = self._skipped_file(side)
                copy_file(self.folder / f"{side}.text" / SKIPPED, files[side])
        return files


def print_facts(facts: Mapping[str, Any]) -> None:
    """Prints what a verb reports as a table of names and values."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, show_lines=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value not in (None, {}, [], ""):
            table.add_row(escape(name), escape(in_words(value)))
    SafeConsole().print(table)


def in_words(value: Any) -> str:
    """A value of a report, with those inside it.

    Examples:
        >>> in_words({"sentences": 1200, "skipped": {"blank": 3}, "bad_lines": ""})
        'sentences 1,200, skipped (blank 3)'
    """
    if isinstance(value, Mapping):
        words = []
        for name, item in value.items():
            text = f"({in_words(item)})" if isinstance(item, Mapping) else in_words(item)
            if text.strip("()"):
                words.append(f"{name} {text}")
        return ", ".join(words)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(in_words, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value or "")
