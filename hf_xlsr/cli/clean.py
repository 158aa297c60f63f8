"""The verb `clean` of the `hf-xlsr` command."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_xlsr.cli.options import LANGUAGES, WORKERS, WorkerOptions
from hf_xlsr.cli.reproduce import command_of
from hf_xlsr.runs.own_data import COLUMNS, comma_separated
from hf_xlsr.utils.console import say, warn
from hf_xlsr.utils.errors import XlsrError

if TYPE_CHECKING:
    from hf_xlsr.data.cleaning.cost import CleaningCost

DEFAULT_STEPS = "normalize, drop_identical, deduplicate"
UNNAMED = "und"  # the language of a side that nothing names
UNKNOWN = "Without --known, this cannot tell good pairs from bad ones: look at the examples."


@dataclass(kw_only=True)
class CleanOptions(WorkerOptions):
    """Options of `hf-xlsr clean`."""

    pairs: Annotated[list[str], typer.Argument(help="File of pairs in any supported format, or two Moses files.")]
    steps: Annotated[
        str,
        typer.Option(
            metavar="STEP,...",
            help='Steps as in a recipe, e.g. "normalize, language: {min_share: 0.5}, length, ratio".',
        ),
    ] = DEFAULT_STEPS
    known: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Pairs that are known to be good, to measure what each step costs."),
    ] = None
    languages: Annotated[str | None, LANGUAGES] = None
    columns: Annotated[str | None, typer.Option(help=f"{COLUMNS}: source=en,target=de.")] = None
    output: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Clean pairs, with their languages and scores: .tsv, .jsonl, .parquet or .tmx."
        ),
    ] = None
    report: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Markdown: the tables, and ten examples for each step and kind of pair."),
    ] = None
    work: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="Folder of several processes to resume from; by default OUTPUT.work.", **WORKERS
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="Draws the bad pairs.")] = 1
    json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False

    @property
    def folder(self) -> Path | None:
        """Where several processes keep what is finished; None for a temporary folder."""
        if self.work:
            return Path(self.work)
        return Path(f"{self.output}.work") if self.output else None


def clean(options: CleanOptions) -> None:
    """Clean pairs, and measure what that costs.

    With --known, each step also runs on good pairs and on bad ones made from them: shuffled, truncated, untranslated, in
    another language, with another number, boilerplate. A killed call of several processes resumes.

    Example: hf-xlsr clean pairs.tsv --languages en,de --steps normalize,language --known good.tsv --output clean.tsv
    """
    from hf_xlsr.data.cleaning import Cleaner, build_steps, parse_steps
    from hf_xlsr.data.cleaning.cleaner import RemovedExamples
    from hf_xlsr.data.cleaning.cost import BAD_PAIRS, EXAMPLES, cleaning_cost, cost_counts, cost_warnings
    from hf_xlsr.data.formats.quarantine import Quarantine
    from hf_xlsr.mining.facts import files_facts, new_step, write_facts
    from hf_xlsr.utils.files import write_text

    runner = options.runner()
    languages = comma_separated(options.languages)
    _check_outputs(options, languages)
    steps = build_steps(parse_steps(options.steps), languages or None)
    if not steps:
        raise XlsrError("--steps names no step, e.g. --steps normalize,ratio.")

    cost: CleaningCost = {}
    if options.known:
        cost = cleaning_cost(steps, _rows(options.known, options, Quarantine()), seed=options.seed)
    examples = RemovedExamples(EXAMPLES)
    cleaner = Cleaner(steps, examples)
    quarantine = Quarantine()
    rows = cleaner(_rows(options.pairs, options, quarantine), runner=runner, folder=options.folder)
    count = _write(rows, options, languages)

    counts = cost_counts(cost)
    summary = {"pairs": count, "cleaning": cleaner.counts, "bad_lines": quarantine.report(), "cost": counts}
    if options.output:
        facts = {
            "files": files_facts(options.pairs),
            "pairs": {"in": next(iter(cleaner.counts.values()))["in"], "out": count},
            "cleaning": {"pairs": cleaner.counts},
            "cost": counts,
            "skipped": dict(quarantine.counts),
        }
        step = new_step("clean", {}, facts, command=command_of("clean", options), languages=languages)
        write_facts(options.output, step, options.pairs)
    removed = {name: examples.by_step.get(number, []) for number, name in enumerate(cleaner.counts)}
    if options.report:
        write_text(options.report, "\n".join(_lines(summary, removed, cost, list(BAD_PAIRS))) + "\n")
    if options.json:
        say(json.dumps(summary, indent=2))
    else:
        say("\n".join(_lines(summary, removed, cost, [])))
    for warning in cost_warnings(counts):
        warn(f"hf-xlsr: {warning}")


def _check_outputs(options: CleanOptions, languages: Sequence[str]) -> None:
    """Raises an error for files that cannot be written, or that are also read."""
    from hf_xlsr.mining.facts import facts_file
    from hf_xlsr.mining.outputs import output_format
    from hf_xlsr.runs.inputs import check_named
    from hf_xlsr.utils.files import check_writable

    outputs = {"--output": options.output, "--report": options.report}
    files = {option: file for option, file in outputs.items() if file}
    written = list(files.values())
    if options.output:
        written.append(str(facts_file(options.output)))
    check_named(None, {"PAIRS": options.pairs, "--known": options.known}, outputs=written)
    if len(set(map(os.path.realpath, files.values()))) < len(files):
        raise XlsrError(f"--output and --report are one file, '{options.output}'.")
    for option, file in files.items():
        check_writable(file, option)
    if options.work and options.processes == 1:
        raise XlsrError("--work keeps what several processes have finished. Add --num-proc N or --engine ray.")
    if options.folder and options.processes != 1:
        check_writable(options.folder, "--work", folder=True)
    if options.output:
        output_format(options.output, None, languages or None)


def _rows(
    paths: Sequence[str],
    options: CleanOptions,
    quarantine: Any,
) -> Iterator[dict[str, Any]]:
    """The pairs of files, with their languages."""
    from hf_xlsr.data.sources import Source, open_source

    path = paths[0] if len(paths) == 1 else list(paths)
    source = Source.parse({"path": path, "columns": options.columns})
    languages = comma_separated(options.languages) or [UNNAMED, UNNAMED]
    return open_source(source, languages=languages, quarantine=quarantine)


def _write(rows: Iterator[dict[str, Any]], options: CleanOptions, languages: Sequence[str]) -> int:
    """Writes the pairs with their languages and scores, if there is an output; returns their number."""
    from itertools import chain

    from hf_xlsr.mining.outputs import write_pairs

    if options.output is None:
        return sum(1 for _ in rows)
    first = next(rows, None)
    if first is None:
        raise XlsrError(f"Nothing is left of {' + '.join(options.pairs)}: --steps {options.steps} removes every pair.")

    is_tmx = options.output.endswith(".tmx")  # which holds pairs of two languages
    columns = []
    for name, value in first.items():
        is_language = name in ("source_lang", "target_lang")
        if not (is_language and (is_tmx or value == UNNAMED)):
            columns.append(name)

    def pairs() -> Iterator[dict[str, Any]]:
        for row in chain([first], rows):
            row_languages = [row["source_lang"], row["target_lang"]]
            if is_tmx and row_languages != list(languages):
                pair = "-".join(row_languages)
                raise XlsrError(f"A row is in {pair}, which a TMX file of {'-'.join(languages)} cannot hold.")
            yield {name: row.get(name) for name in columns}

    return write_pairs(options.output, pairs(), columns=columns, languages=languages or None)


def _lines(
    summary: Mapping[str, Any],
    removed: Mapping[str, Sequence[Mapping[str, Any]]],
    cost: "CleaningCost",
    bad_kinds: Sequence[str],
) -> Iterator[str]:
    """The lines of the report, in Markdown, with examples of the known pairs and of kinds of bad pairs."""
    from hf_xlsr.data.cleaning.cost import GOOD, cost_table, removal_table

    yield f"Pairs that are left: {summary['pairs']:,}. Removed, step after step:"
    yield ""
    yield from removal_table(summary["cleaning"])
    if summary["bad_lines"]:
        yield from ("", str(summary["bad_lines"]))
    yield from _example_lines("Removed by {}", removed)
    yield ""
    if not cost:
        yield UNKNOWN
        return

    yield "What each step, alone, removes of the known pairs, and of bad pairs made from them:"
    yield ""
    yield from cost_table(summary["cost"])
    for kind in (GOOD, *bad_kinds):
        examples = {step: removed_by_kind[kind].examples for step, removed_by_kind in cost.items()}
        yield from _example_lines(f"Of the {kind} pairs, removed by {{}}", examples)


def _example_lines(
    title: str,
    examples_by_step: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Iterator[str]:
    from hf_xlsr.utils.markdown import escape_markdown

    for step, examples in examples_by_step.items():
        if not examples:
            continue
        yield from ("", f"{title.format(step)}, for example:", "")
        for row in examples:
            yield f"- {escape_markdown(row['source'])} | {escape_markdown(row['target'])}"
