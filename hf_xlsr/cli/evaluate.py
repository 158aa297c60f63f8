"""The verbs `evaluate` and `compare` of the `hf-xlsr` command."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from hf_xlsr.cli.options import (
    DATA,
    MODEL,
    SEED,
    EncodingWorkerOptions,
    ModelOptions,
    RowOptions,
    labelled,
    load_labelled,
)
from hf_xlsr.cli.report import print_facts
from hf_xlsr.data.sources import as_list
from hf_xlsr.evaluation.protocol import FOR_ALL, PROTOCOLS, OptionSpec, Protocol, option_specs, specs_of
from hf_xlsr.runs.own_data import comma_separated
from hf_xlsr.utils.console import SafeConsole, say
from hf_xlsr.utils.errors import XlsrError, require_choice
from hf_xlsr.utils.tasks import InProcess

if TYPE_CHECKING:
    from hf_xlsr.evaluation.comparison import ComparisonTable
    from hf_xlsr.evaluation.suites.suite import Suite

METRIC = typer.Option(
    help="Metrics of the tables, with commas, or all; by default the headline of each protocol.", show_default=False
)
PANEL = "Options of some protocols (--list shows which)"
PROTOCOL_OPTIONS = [spec for spec in option_specs().values() if spec.name not in FOR_ALL]
FILES = [spec.name for spec in PROTOCOL_OPTIONS if spec.files]


def flag(name: str) -> str:
    """The option of a name.

    Examples:
        >>> flag("tune_gold")
        '--tune-gold'
    """
    return "--" + name.replace("_", "-")


def _option_of(spec: OptionSpec) -> tuple[str, Any, Any]:
    """Name, type and default of a protocol's option, as a field of a dataclass."""
    text = f"{spec.help}: {', '.join(spec.choices)}" if spec.choices else spec.help
    option = typer.Option(flag(spec.name), help=escape(text), rich_help_panel=PANEL, show_default=False)
    if spec.type is bool:
        return spec.name, Annotated[bool, option], field(default=False)
    value_type: Any = list[str] if spec.several else spec.type
    return spec.name, Annotated[value_type | None, option], field(default=None)


# Protocols declare their options, see `hf_xlsr.evaluation.protocol`.
ProtocolOptions: Any = make_dataclass("ProtocolOptions", map(_option_of, PROTOCOL_OPTIONS), kw_only=True)


@dataclass(kw_only=True)
class EvaluateOptions(ProtocolOptions, ModelOptions, RowOptions, EncodingWorkerOptions):  # type: ignore[misc]
    """Options of `hf-xlsr evaluate`."""

    model: Annotated[
        list[str] | None, typer.Argument(help=f"{MODEL} With several, LABEL=PATH names one.", show_default=False)
    ] = None
    protocol: Annotated[
        str | None, typer.Option(help="A protocol, or several with commas that take the same data.")
    ] = None
    data: Annotated[list[str] | None, DATA] = None
    suite: Annotated[
        list[str] | None,
        typer.Option(
            help="YAML files of encoders and tasks, or names of shipped ones: open, flores-plus, ...",
            show_default=False,
        ),
    ] = None
    vectors: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder where embeddings are kept; by default of suites OUTPUT/vectors."),
    ] = None
    show_list: Annotated[
        bool, typer.Option("--list", help="Print the protocols with their columns and options, and stop.")
    ] = False
    name: Annotated[
        str | None, typer.Option(help="Name of the data in metric keys; by default the corpus or file name.")
    ] = None
    seed: Annotated[int | None, SEED] = None
    output: Annotated[
        str | None, typer.Option(help="File for the results, as JSON; of a suite or several models, a folder.")
    ] = None
    metric: Annotated[str | None, METRIC] = None
    predictions: Annotated[
        bool, typer.Option("--predictions", help="Also save the outcome of each example, for hf-xlsr compare.")
    ] = False

    def protocol_options(self) -> dict[str, Any]:
        """The options of protocols that are given, by name."""
        values = {}
        for spec in PROTOCOL_OPTIONS:
            value = getattr(self, spec.name)
            if value is not None and value is not False:
                values[spec.name] = tuple(value) if isinstance(value, list) else value
        return values


def evaluate(options: EvaluateOptions) -> None:
    """Evaluate any sentence encoder under a protocol, or several under a suite.

    Example: hf-xlsr evaluate MODEL --protocol tatoeba,xsim --data pairs.tsv --languages en,de
    """
    if options.show_list:
        print_facts({protocol.name: _described(protocol) for protocol in PROTOCOLS.values()})
        return
    for option in _missing(options):
        raise XlsrError(f"{option} is missing; see hf-xlsr evaluate --help, and --list for the protocols.")
    if {"tune", "hold_out"} <= options.protocol_options().keys():
        raise XlsrError("Give --tune or --hold-out, not both: each says on which rows the head is chosen.")

    models = options.model or []
    if options.suite or len(models) > 1:
        _evaluate_suite(models, options)
    else:
        _evaluate_model(models[0], options)


def _missing(options: EvaluateOptions) -> Iterator[str]:
    """The required options that are not given."""
    if not options.suite:
        if not options.model:
            yield "MODEL"
        if not options.protocol:
            yield "--protocol NAME"
        if not options.data:
            yield "--data FILE"
    several = options.suite or len(options.model or ()) > 1
    if (several or options.predictions) and not options.output:
        yield "--output"


def _evaluate_suite(models: list[str], options: EvaluateOptions) -> None:
    from hf_xlsr.evaluation.suites.suite import SuiteEncoder, evaluate_suite, result_files
    from hf_xlsr.runs.inputs import check_all_named

    suite = _suite(options)
    for label, path in labelled(models).items():
        suite.encoders[label] = SuiteEncoder(model=path)
    common = options.encoder_options().model_dump(exclude_defaults=True)
    for label, encoder in suite.encoders.items():
        stated = encoder.model_dump(exclude_unset=True)
        suite.encoders[label] = SuiteEncoder(**{**common, **stated})

    data: dict[str, tuple[list[str], tuple[str, ...]]] = {
        "--suite": (list(filter(os.path.isfile, options.suite or ())), ())
    }
    for name, task in suite.tasks.items():
        data[f"task {name}"] = (task.data, task.languages)
        for option in FILES:
            data[f"{option} of task {name}"] = (as_list(task.options.get(option)), task.languages)
    output = str(options.output)
    check_all_named(
        {f"encoder {label}": encoder.model for label, encoder in suite.encoders.items()},
        data,
        "the suite" if options.suite else "the command",
        [output, *result_files(suite, output)],
    )
    metrics = comma_separated(options.metric)
    tables = evaluate_suite(suite, output, vectors=options.vectors, metrics=metrics, runner=options.runner())
    _print_tables(tables)


def _evaluate_model(model: str, options: EvaluateOptions) -> None:
    from hf_xlsr.evaluation.command import evaluate_files
    from hf_xlsr.evaluation.protocols.language_bias import SHARE
    from hf_xlsr.evaluation.report import results_table
    from hf_xlsr.evaluation.results import Results, outcomes_file
    from hf_xlsr.runs.inputs import check_named

    data = options.data_options(options.data or (), options.name)
    if options.metric:
        raise XlsrError(f"--metric {options.metric} is for tables of several models; one model has all metrics.")
    if not isinstance(options.runner(), InProcess):
        raise XlsrError(
            "Several processes (--num-proc, --engine) share a suite or several models; one model needs one."
        )

    encoder = options.encoder_options()
    protocol_options = options.protocol_options()
    files = {flag(name): protocol_options.get(name) for name in FILES}
    outputs = [Path(options.output), outcomes_file(options.output)] if options.output else []
    check_named(model, {"--data": data.files, **files}, data.languages, outputs)

    results = evaluate_files(
        model,
        str(options.protocol),
        data,
        protocol_options,
        encoder=encoder,
        seed=options.seed,
        output=options.output,
        predictions=options.predictions,
        vectors=options.vectors,
    )

    # A share for each pair of languages is for the plot.
    shown = Results(record for record in results.records.values() if not record.metric.startswith(SHARE))
    SafeConsole().print(results_table(shown, title=f"{model}, {options.protocol}"))


def _suite(options: EvaluateOptions) -> "Suite":
    """The suites that are named, or one of a single task."""
    from hf_xlsr.evaluation.suites.suite import Suite, SuiteTask, load_suite

    protocol = options.protocol or ""
    if not options.suite:
        data = dict(vars(options.data_options(options.data or (), options.name)))
        task = SuiteTask(
            protocol=protocol.split(","),
            data=list(data.pop("files")),
            seed=options.seed,
            options=options.protocol_options(),
            **data,
        )
        return Suite(tasks={protocol.replace(",", "-"): task})

    for name in _options_of_tasks(options):
        raise XlsrError(f"{flag(name)} must be set in the tasks of the suite.")
    suite = load_suite(*options.suite)
    for task in suite.tasks.values():
        task.limit = options.limit or task.limit
    return suite


def _options_of_tasks(options: EvaluateOptions) -> Iterator[str]:
    """The given options that a suite has for each task."""
    yield from options.protocol_options()
    for name in ("data", "protocol", "columns", "languages", "where", "config", "format", "name", "seed"):
        if getattr(options, name) not in (None, []):
            yield name
    if options.split != "test":
        yield "split"


def _print_tables(tables: "list[ComparisonTable]") -> None:
    from hf_xlsr.evaluation.comparison_files import LEGEND, terminal_table

    SafeConsole(highlight=False).print(*map(terminal_table, tables), LEGEND)


@dataclass(kw_only=True)
class CompareOptions:
    """Options of `hf-xlsr compare`."""

    results: Annotated[
        list[str],
        typer.Argument(help="Files of hf-xlsr evaluate --output, as FILE or LABEL=FILE.", show_default=False),
    ]
    metric: Annotated[str | None, METRIC] = None
    output: Annotated[
        str | None,
        typer.Option(help="A .md, .csv, .tex or .json file; by default a table is printed, in a pipe as Markdown."),
    ] = None
    caption: Annotated[str | None, typer.Option(help="Caption of a .tex table, by default its title.")] = None
    label: Annotated[
        str | None, typer.Option(help="Label of a .tex table, for \\ref; of several tables with a number: LABEL-1.")
    ] = None
    plots: Annotated[str | None, typer.Option(metavar="DIR", help="Folder for a picture of each table.")] = None


def compare(options: CompareOptions) -> None:
    """Compare encoders: tables with intervals, and tests of the differences.

    Example: hf-xlsr compare ours.json e5.json --output table.md
    """
    from hf_xlsr.evaluation.comparison import compare_encoders
    from hf_xlsr.evaluation.comparison_files import ENDINGS, render_tables
    from hf_xlsr.runs.inputs import check_named
    from hf_xlsr.utils.files import write_text

    outputs = [path for path in (options.output, options.plots) if path]
    check_named(None, {"RESULTS": list(labelled(options.results).values())}, outputs=outputs)
    ending = Path(options.output).suffix if options.output else ".md"
    require_choice("--output", ending, ENDINGS)
    tables = compare_encoders(load_labelled(options.results), comma_separated(options.metric))
    content = render_tables(tables, ending, caption=options.caption, label=options.label)
    if options.plots is not None:
        from hf_xlsr.evaluation.plots import plot_comparisons

        plot_comparisons(options.plots, tables)
    if options.output is not None:
        write_text(options.output, content)
    elif sys.stdout.isatty():
        _print_tables(tables)
    else:
        say(content, end="")


def _described(protocol: Protocol) -> str:
    """What a protocol measures, and what it reads."""
    lines = [protocol.summary, f"data: {protocol.data}"]
    if protocol.optional:
        lines.append(f"optional columns: {', '.join(protocol.optional)}")
    direction = "lower" if protocol.lower_is_better else "higher"
    lines.append(f"compared by: {' or '.join(protocol.headlines)}, {direction} is better")
    options = map(flag, specs_of(protocol.options))
    lines.append(f"options: {' '.join(options)}")
    return "\n".join(lines)
