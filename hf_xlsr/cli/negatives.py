"""The verb `negatives` of the `hf-xlsr` command."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_xlsr.cli.mine import PairColumn, SearchOptions, pair_rows_of
from hf_xlsr.cli.options import MODEL, SEED
from hf_xlsr.cli.report import print_facts
from hf_xlsr.runs.own_data import COLUMNS
from hf_xlsr.utils.console import say
from hf_xlsr.utils.errors import XlsrError

if TYPE_CHECKING:
    from hf_xlsr.mining.negatives import Knowledge, NegativesRun
    from hf_xlsr.mining.options import MiningOptions, NegativeOptions

RULES: dict[str, Any] = {"rich_help_panel": "Ruling out translations"}
CHECKS: dict[str, Any] = {"rich_help_panel": "Measuring false negatives"}


@dataclass(kw_only=True)
class NegativesOptions(SearchOptions):
    """Options of `hf-xlsr negatives`."""

    pairs: Annotated[list[str], typer.Argument(help="File of pairs in any supported format, or two Moses files.")]
    model: Annotated[str, typer.Option(help=MODEL)]
    columns: Annotated[str | None, typer.Option(help=f"{COLUMNS}: source=de,target=en.")] = None
    per_pair: Annotated[int, typer.Option(help="Negatives of each pair.")] = 4
    synthetic: Annotated[
        str | None,
        typer.Option(
            metavar="KIND,...",
            help="Edits of the target, too: number,name,negation,entity,order; needs --languages.",
        ),
    ] = None
    edited: Annotated[
        int | None, typer.Option(help="At most this many of --per-pair are edits; by default half of them.")
    ] = None
    nearest: Annotated[int, typer.Option(help="Near sentences that are looked at for each pair.")] = 32
    seed: Annotated[int, SEED] = 1
    below: Annotated[
        float, typer.Option(help="A negative's margin is below this share of the pair's own.", **RULES)
    ] = 0.95
    known: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="Further translations, also in other languages; none is a negative.", **RULES
        ),
    ] = None
    second_model: Annotated[
        str | None,
        typer.Option(help="Another encoder of both languages, with its own prompts, asked for paraphrases.", **RULES),
    ] = None
    paraphrase: Annotated[
        float, typer.Option(help="Its limit: share of the way from the nearest's mean to the translation.", **RULES)
    ] = 0.7
    truth: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Translations that only measure: negatives among them are false.", **CHECKS),
    ] = None
    labels: Annotated[str | None, typer.Option(help="Labels saved from the page of an earlier run.", **CHECKS)] = None

    @property
    def report(self) -> str:
        """The Markdown file with counts and examples."""
        return f"{self.output}.report.md"

    def negative_options(self) -> "NegativeOptions":
        """The options of the library, checked."""
        from hf_xlsr.data.edits import check_kinds
        from hf_xlsr.mining.options import NegativeOptions

        return NegativeOptions(
            per_pair=self.per_pair,
            synthetic=check_kinds(self.synthetic or ""),
            edited=self.edited,
            nearest=self.nearest,
            below=self.below,
            paraphrase=self.paraphrase,
            seed=self.seed,
        )


def negatives(options: NegativesOptions) -> None:
    """Add hard negatives to translation pairs.

    Each pair gets near sentences of the target's language that are no translations, and edits of its target. The columns
    source, target, negative_1, ... are those that DualMomentumTrainer and sentence-transformers' losses read.

    Example: hf-xlsr negatives pairs.tsv --model MODEL --languages de,en --synthetic number --output negatives.parquet
    """
    from hf_xlsr.mining.negatives import run_negatives
    from hf_xlsr.runs.inputs import check_named

    chosen = options.negative_options()
    mining = options.mining_options()
    options.check_output(mining.languages)
    if options.output.endswith(".tmx") or options.format == "tmx":
        raise XlsrError(
            f"--output {options.output} holds two texts a row; write negatives to .parquet, .jsonl or .tsv."
        )
    files = {
        "PAIRS": options.pairs,
        "--known": options.known,
        "--truth": options.truth,
        "--labels": options.labels,
    }
    check_named(options.model, files, outputs=[*options.written, options.report])
    sources = PairColumn(options.pairs, options.columns, mining.languages, "source")
    targets = PairColumn(options.pairs, options.columns, mining.languages, "target")

    with options.resumable():
        run = run_negatives(
            sources,
            targets,
            options.folder,
            mining,
            chosen,
            encoder=options.model,
            second_encoder=options.second_model,
            knowledge=_knowledge(options),
            runner=options.runner(),
        )
        _finish(run, options, mining, sources.bad_lines)


def _knowledge(options: NegativesOptions) -> "Knowledge":
    from hf_xlsr.mining.negatives import Knowledge
    from hf_xlsr.mining.outputs import read_labels

    labels = read_labels(options.labels) if options.labels else {}
    return Knowledge(_links(options.known), _links(options.truth), labels)


def _links(paths: list[str] | None) -> Iterator[tuple[str, str]]:
    """The pairs of files, whichever languages they are in."""
    for path in paths or ():
        for row in pair_rows_of([path], None):
            yield row["source"], row["target"]


def _finish(
    run: "NegativesRun",
    options: NegativesOptions,
    mining: "MiningOptions",
    bad_lines: str,
) -> None:
    """Writes the negatives, the report and the page, and prints the summary."""
    import numpy as np

    from hf_xlsr.mining.negative_report import false_negatives, report_lines
    from hf_xlsr.mining.negatives import remove_jobs
    from hf_xlsr.mining.outputs import write_pairs, write_report
    from hf_xlsr.utils.files import write_text

    write_pairs(options.output, run.rows(), columns=run.columns, format=options.format)
    write_text(options.report, "\n".join(report_lines(run.counts, run.report["pairs"])) + "\n")
    page = f"{options.output}.report.html"
    scores = np.array([row["score"] for row in run.mined()])
    if len(scores):
        write_report(
            page,
            run.mined(),
            scores,
            title=f"Mined negatives of {' and '.join(options.pairs)}: accept translations",
            languages=mining.languages,
        )

    summary = {
        **run.report,
        "output": options.output,
        "negatives": dict(run.counts.chosen),
        "ruled_out": dict(run.counts.ruled_out),
        "false_negatives": false_negatives(run.counts),
        "bad_lines": bad_lines,
        "report": options.report,
        "page": page if len(scores) else None,
    }
    if not options.work:
        remove_jobs(options.folder)
    if options.json:
        say(json.dumps(summary, indent=2))
    else:
        print_facts(summary)
