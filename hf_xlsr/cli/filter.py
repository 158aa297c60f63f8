"""The verb `filter` of the `hf-xlsr` command."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_xlsr.cli.mine import SearchOptions
from hf_xlsr.cli.options import MODEL
from hf_xlsr.cli.report import print_facts
from hf_xlsr.cli.reproduce import command_of
from hf_xlsr.runs.own_data import COLUMNS, comma_separated
from hf_xlsr.utils.console import say
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.local_paths import public_name

if TYPE_CHECKING:
    from hf_xlsr.mining.filtering.pair_filter import FilteredPairs

FILTER: dict[str, Any] = {"rich_help_panel": "Filter"}


@dataclass(kw_only=True)
class FilterVerbOptions(SearchOptions):
    """Options of `hf-xlsr filter`."""

    pairs: Annotated[list[str], typer.Argument(help="File of pairs in any supported format, or two Moses files.")]
    model: Annotated[str, typer.Option(help=MODEL)]
    known: Annotated[
        list[str],
        typer.Option(
            metavar="FILE", help="Good pairs that are not among these, 200 or more, in any format.", **FILTER
        ),
    ]
    columns: Annotated[str | None, typer.Option(help=f"{COLUMNS}: source=en,target=de.")] = None
    identifier: Annotated[
        str,
        typer.Option(
            help="Tells languages apart: py3langid, heliport, fasttext:FILE, or script for letters.", **FILTER
        ),
    ] = "py3langid"
    features: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN,...",
            help="Columns of numbers to look at, such as a score of COMET; the training pairs need them, too.",
            **FILTER,
        ),
    ] = None
    save_training: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write the training pairs, to score and give as --known, and stop.", **FILTER
        ),
    ] = None
    threshold: Annotated[float | None, typer.Option(help="Lowest probability to keep; by default 0.5.", **FILTER)] = (
        None
    )
    precision: Annotated[
        float | None, typer.Option(help="Precision on held-out pairs to reach, instead of a threshold.", **FILTER)
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Draws the damage and the held-out pairs.", **FILTER)] = 0


def filter(options: FilterVerbOptions) -> None:
    """Give each pair its probability to be good, and keep the probable ones.

    A small classifier learns from known pairs and from damaged copies of them. Held-out ones tell its reliability.

    Example: hf-xlsr filter mined.tsv --model MODEL --languages en,de --known good.tsv --precision 0.95 --output clean.tsv
    """
    from hf_xlsr.data.formats.reading import column_names
    from hf_xlsr.mining.filtering.pair_filter import TRAINING_COLUMNS, FilterOptions, filter_bitext, training_pairs
    from hf_xlsr.mining.outputs import write_pairs
    from hf_xlsr.runs.inputs import check_named

    languages = comma_separated(options.languages)
    if len(languages) != 2:
        raise XlsrError("filter needs --languages of source and target, e.g. --languages en,de.")
    mining = options.mining_options(threshold=None)
    options.check_output(mining.languages)
    written = [*options.written, *filter_outputs(options.output)]
    if options.save_training:
        written.append(options.save_training)
    files = {"PAIRS": options.pairs, "--known": options.known}
    check_named(options.model, files, outputs=written)

    filtering = FilterOptions(
        (languages[0], languages[1]),
        options.identifier,
        comma_separated(options.features),
        options.seed,
    )
    features = list(filtering.columns)
    pairs = list(_rows(options.pairs, options, languages, features))
    if not pairs:
        raise XlsrError(f"{' + '.join(options.pairs)} has no pairs.")
    known_columns = []
    if set(column_names(_path(options.known))) >= TRAINING_COLUMNS:  # of --save-training
        known_columns = [*sorted(TRAINING_COLUMNS), *features]
    known = list(_rows(options.known, options, languages, known_columns))
    if options.save_training:
        rows, report = training_pairs(pairs, known, filtering)
        columns = ["kind", "part", "source", "target"]
        count = write_pairs(options.save_training, rows, columns=columns, languages=languages)
        print_facts({"training pairs": count, "written to": options.save_training, "known": report})
        return

    with options.resumable():
        result = filter_bitext(
            pairs,
            known,
            filtering,
            mining,
            encoder=options.model,
            folder=options.folder,
            runner=options.runner(),
        )
        _finish(options, result, pairs, languages)


def _path(paths: Sequence[str]) -> str | list[str]:
    """A file, or the files of a pair."""
    return paths[0] if len(paths) == 1 else list(paths)


def _rows(
    paths: Sequence[str], options: FilterVerbOptions, languages: Sequence[str], more_columns: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """The pairs of files, with more of their columns."""
    from hf_xlsr.data.formats.reading import read_rows

    for row in read_rows(_path(paths), columns=options.columns, languages=languages, selecting=more_columns):
        yield row | {name: row[f"_{name}"] for name in more_columns}


def filter_outputs(output: str) -> list[str]:
    """The files that `filter` writes, other than the pairs."""
    return [f"{output}.filter.json"]


def _finish(
    options: FilterVerbOptions, result: "FilteredPairs", pairs: list[dict[str, Any]], languages: list[str]
) -> None:
    """Chooses the threshold, writes pairs, reliability and page, and prints them."""
    from hf_xlsr.mining.facts import files_facts, histogram, new_step, scoring_facts, write_facts
    from hf_xlsr.mining.outputs import write_report
    from hf_xlsr.utils.files import write_json

    curve = result.held_out.curve()
    threshold = options.threshold
    if threshold is None and options.precision is None:
        threshold = 0.5
    threshold, estimate = curve.chosen(threshold, options.precision)

    columns = ["probability", "score", "cosine", *comma_separated(options.features), "source", "target"]
    rows = []
    for number, row in enumerate(pairs):
        figures = {
            "probability": float(result.probability[number]),
            "score": float(result.scores.score[number]),
            "cosine": float(result.scores.cosine[number]),
        }
        rows.append({**row, **figures})
    kept = (row for row in rows if row["probability"] >= threshold)
    report = result.report | options.write(kept, columns, languages)

    reliability = [asdict(point) for point in result.held_out.reliability()]
    kinds = result.held_out.kept_by_kind(threshold)
    facts = {
        "threshold": threshold,
        "estimate": estimate,
        "of": len(pairs),
        "held-out pairs kept": {kind: f"{count:,} of {total:,}" for kind, (count, total) in kinds.items()},
    }
    details = {"features": result.features, "reliability": reliability, "curve": curve.values()}
    write_json(f"{options.output}.filter.json", report | facts | details)

    page = f"{options.output}.report.html"
    sample = ({**row, "score": row["probability"]} for row in rows)
    title = f"{' and '.join(map(public_name, options.pairs))}: probability to be good"
    write_report(page, sample, result.probability, curve, threshold, title=title, languages=languages)

    known = {name: count for name, count in report["known"].items() if name != "first"}
    step_facts = {
        **scoring_facts(result.facts),
        "files": files_facts(options.pairs),
        "pairs": {"in": len(pairs), "out": report["pairs"]},
        "known": known,
        "held_out": kinds,
        "reliability": reliability,
        "columns": comma_separated(options.features),
        "histogram": histogram(result.probability, "probability to be good"),
        "curve": curve.values(),
    }
    estimates = {"threshold": threshold, "estimate": estimate}
    step = new_step("filter", estimates, step_facts, command=command_of("filter", options), languages=languages)
    write_facts(options.output, step, options.pairs, page)
    if not options.work:
        shutil.rmtree(options.folder)

    summary = report | facts | {"page": page}
    if options.json:
        say(json.dumps(summary | details, indent=2))
        return
    first_pairs = summary.pop("first")
    print_facts(summary)
    say("\n".join(reliability_lines(reliability)))
    for row in first_pairs:
        say(f"{row['probability']:.4f}\t{row['source']}\t{row['target']}")


def reliability_lines(reliability: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of a Markdown table of a reliability curve."""
    from hf_xlsr.utils.markdown import markdown_table

    rows = []
    for point in reliability:
        share = f"{point['good']:.1%} ({point['low']:.1%}-{point['high']:.1%})"
        rows.append([f"{point['probability']:.1%}", f"{point['pairs']:,}", share])
    return markdown_table(["mean probability", "held-out pairs", "of them good"], rows)
