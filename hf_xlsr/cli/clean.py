"""The verb `clean` of the `hf-xlsr` command."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_xlsr.cli.options import LANGUAGES
from hf_xlsr.runs.own_data import COLUMNS, comma_separated
from hf_xlsr.utils.console import say, warn
from hf_xlsr.utils.errors import XlsrError

if TYPE_CHECKING:
    from hf_xlsr.data.cleaning.cost import CleaningCost

DEFAULT_STEPS = "normalize, drop_identical, deduplicate"
SHOWN = 3  # examples of each step on the terminal; the report has ten
UNKNOWN = "Without --known, this cannot tell good pairs from bad ones: look at the examples."


@dataclass(kw_only=True)
class CleanOptions:
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
        str | None, typer.Option(metavar="FILE", help="Clean pairs: .tsv, .jsonl, .parquet or .tmx.")
    ] = None
    report: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Markdown: the tables, and ten examples of what each step removes."),
    ] = None
    seed: Annotated[int, typer.Option(help="Draws the bad pairs.")] = 1
    json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False


def clean(options: CleanOptions) -> None:
    """Clean pairs, and measure what that costs.

    With --known, each step also runs on good pairs and on bad ones made from them: shuffled, truncated, untranslated, in
    another language, with another number, boilerplate.
    """
    from hf_xlsr.data.cleaning import Cleaner, build_steps, parse_steps
    from hf_xlsr.data.cleaning.cleaner import RemovedExamples
    from hf_xlsr.data.cleaning.cost import EXAMPLES, cleaning_cost, cost_counts, cost_warnings
    from hf_xlsr.data.formats.quarantine import Quarantine
    from hf_xlsr.runs.inputs import check_named
    from hf_xlsr.utils.files import write_text

    languages = comma_separated(options.languages)
    outputs = [file for file in (options.output, options.report) if file]
    check_named(None, {"PAIRS": options.pairs, "--known": options.known}, outputs=outputs)
    if options.output and options.output == options.report:
        raise XlsrError(f"--output and --report are one file, '{options.output}'.")
    steps = build_steps(parse_steps(options.steps), languages or None)
    if not steps:
        raise XlsrError("--steps names no step, e.g. --steps normalize,ratio.")

    examples = RemovedExamples(EXAMPLES)
    cleaner = Cleaner(steps, examples)
    quarantine = Quarantine()
    clean_rows = cleaner(_rows(options.pairs, options, quarantine))
    count = _write(clean_rows, options, languages)
    cost: CleaningCost = {}
    if options.known:
        cost = cleaning_cost(steps, _rows(options.known, options, Quarantine()), seed=options.seed)

    counts = cost_counts(cost)
    summary = {"pairs": count, "cleaning": cleaner.counts, "bad_lines": quarantine.report(), "cost": counts}
    removed = dict(
        zip(cleaner.counts, (examples.by_step.get(number, []) for number in range(len(steps))), strict=True)
    )
    if options.report:
        write_text(options.report, "\n".join(_lines(summary, removed, cost, EXAMPLES)) + "\n")
    if options.json:
        say(json.dumps(summary, indent=2))
    else:
        say("\n".join(_lines(summary, removed, cost, SHOWN)))
    for warning in cost_warnings(counts):
        warn(f"hf-xlsr: {warning}")


def _rows(
    paths: Sequence[str],
    options: CleanOptions,
    quarantine: Any,
) -> Iterator[dict[str, Any]]:
    """The pairs of files, with their languages."""
    from hf_xlsr.data.sources import Source, open_source

    path = paths[0] if len(paths) == 1 else list(paths)
    source = Source.parse({"path": path, "columns": options.columns})
    languages = comma_separated(options.languages) or ["und", "und"]
    return open_source(source, languages=languages, quarantine=quarantine)


def _write(rows: Iterator[dict[str, Any]], options: CleanOptions, languages: Sequence[str]) -> int:
    """Writes the pairs, if there is an output; returns their number."""
    from itertools import chain

    from hf_xlsr.mining.outputs import output_format, write_pairs
    from hf_xlsr.utils.files import check_writable

    if options.output is None:
        return sum(1 for _ in rows)
    output_format(options.output, None, languages or None)
    check_writable(options.output, "--output")
    first = next(rows, None)
    if first is None:
        raise XlsrError(f"Nothing is left of {' + '.join(options.pairs)}: --steps {options.steps} removes every pair.")

    columns = [name for name in first if not (languages and name in ("source_lang", "target_lang"))]
    pairs = ({name: row[name] for name in columns} for row in chain([first], rows))
    return write_pairs(options.output, pairs, columns=columns, languages=languages or None)


def _lines(
    summary: Mapping[str, Any],
    removed: Mapping[str, Sequence[Mapping[str, Any]]],
    cost: "CleaningCost",
    num_examples: int,
) -> Iterator[str]:
    """The lines of the report, in Markdown."""
    from hf_xlsr.data.cleaning.cost import GOOD, cost_table, removal_table

    yield f"{summary['pairs']:,} pairs are left. Removed, step after step:"
    yield ""
    yield from removal_table(summary["cleaning"])
    if summary["bad_lines"]:
        yield from ("", str(summary["bad_lines"]))
    yield from _example_lines("Removed by {}", removed, num_examples)
    yield ""
    if not cost:
        yield UNKNOWN
        return

    yield "What each step, alone, removes of the known pairs, and of bad pairs made from them:"
    yield ""
    yield from cost_table(summary["cost"])
    kinds = list(next(iter(cost.values())))
    if num_examples == SHOWN:
        kinds = [GOOD]
    for kind in kinds:
        examples = {step: removed_by_kind[kind].examples for step, removed_by_kind in cost.items()}
        yield from _example_lines(f"Of the {kind} pairs, removed by {{}}", examples, num_examples)


def _example_lines(
    title: str,
    examples_by_step: Mapping[str, Sequence[Mapping[str, Any]]],
    num_examples: int,
) -> Iterator[str]:
    from hf_xlsr.utils.markdown import escape_markdown

    for step, examples in examples_by_step.items():
        if not examples:
            continue
        yield from ("", f"{title.format(step)}, for example:", "")
        for row in examples[:num_examples]:
            yield f"- {escape_markdown(row['source'])} | {escape_markdown(row['target'])}"
