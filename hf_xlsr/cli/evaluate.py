"""The verb `evaluate` of the `hf-xlsr` command."""

from __future__ import annotations

import sys
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_xlsr.cli.options import (
    MODEL,
    data_options,
    encoder_options,
    extended,
    keyword,
    labelled,
    load_labelled,
    shared,
)
from hf_xlsr.evaluation.protocol import FOR_ALL, PROTOCOLS, option_specs, specs_of
from hf_xlsr.utils.errors import XlsrError, require_choice

PANEL = "Options of some protocols (--list shows which)"


def protocol_parameters() -> list[Parameter]:
    found = []
    for spec in option_specs().values():
        if spec.name in FOR_ALL:
            continue
        text = f"{spec.help}: {', '.join(spec.choices)}" if spec.choices else spec.help
        kind: Any = bool if spec.type is bool else (list[str] if spec.several else spec.type) | None
        default = False if spec.type is bool else None
        found.append(keyword(spec.name, kind, default, text, rich_help_panel=PANEL, show_default=False))
    return found


@extended(*shared(), *protocol_parameters())
def evaluate(
    model: Annotated[
        list[str] | None, typer.Argument(help=f"{MODEL} With several, LABEL=PATH names one.", show_default=False)
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="A protocol, or several with commas that take the same data.")
    ] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(
            help="YAML files of encoders and tasks, or names of shipped ones: open, hub, mteb.", show_default=False
        ),
    ] = None,
    vectors: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder where embeddings are kept; by default of suites OUTPUT/vectors."),
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="Print the protocols with their columns and options, and stop.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Name of the data in metric keys; by default the corpus or file name.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="File for the results, as JSON; of a suite or several models, a folder.")
    ] = None,
    predictions: Annotated[
        bool, typer.Option("--predictions", help="Also save the outcome of each example, for hf-xlsr compare.")
    ] = False,
    **given: Any,
) -> None:
    """Evaluate any sentence encoder under a protocol, or several under a suite."""
    from rich.console import Console

    if show_list:
        Console().print(_protocols_table())
        return
    models = model or []
    several = bool(suite) or len(models) > 1
    of_task = {"MODEL": models, "--protocol NAME": protocol, "--data FILE": given["data"]}
    needed = {**({} if suite else of_task), **({"--output": output} if several or predictions else {})}
    if missing := [option for option, value in needed.items() if not value]:
        raise XlsrError(f"{missing[0]} is missing; see hf-xlsr evaluate --help, and --list for the protocols.")
    data, encoder, seed = data_options(given, name), encoder_options(given), given.pop("seed")
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    options = {key: value for key, value in options.items() if value is not None and value is not False}

    if several:
        from hf_xlsr.evaluation.suites.suite import SuiteEncoder, evaluate_suite
        from hf_xlsr.runs.inputs import check_all_named

        whole = _suite(suite, protocol or "", data, options, seed)
        for label, path in labelled(models).items():
            whole.encoders[label] = SuiteEncoder(model=path)
        common = encoder.model_dump(exclude_defaults=True)
        for label, one in whole.encoders.items():
            whole.encoders[label] = SuiteEncoder(**{**common, **one.model_dump(exclude_unset=True)})
        check_all_named(
            {f"encoder {label}": one.model for label, one in whole.encoders.items()},
            {f"task {name}": (task.data, task.languages) for name, task in whole.tasks.items()},
            "the suite" if suite else "the command",
        )
        _print_tables(evaluate_suite(whole, str(output), vectors=vectors))
        return

    from hf_xlsr.evaluation.command import evaluate_files
    from hf_xlsr.evaluation.protocols.language_bias import SHARE
    from hf_xlsr.evaluation.report import results_table
    from hf_xlsr.evaluation.results import Results
    from hf_xlsr.runs.inputs import check_named

    files = {f"--{key.replace('_', '-')}": options.get(key) for key in ("pool", "tune", "gold", "tune_gold")}
    check_named(models[0], {"--data": data.files, **files}, data.languages)
    places: dict[str, Any] = {"output": output, "predictions": predictions, "vectors": vectors}
    results = evaluate_files(models[0], str(protocol), data, options, encoder=encoder, seed=seed, **places)
    # A share for each pair of languages is for the plot.
    shown = Results(record for record in results.records.values() if not record.metric.startswith(SHARE))
    Console().print(results_table(shown, title=f"{models[0]}, {protocol}"))


def _suite(suites: list[str] | None, protocol: str, data: Any, options: dict[str, Any], seed: int | None) -> Any:
    """The suites of these names, or one of a single task."""
    from hf_xlsr.evaluation.suites.suite import Suite, SuiteTask, load_suite

    same = {key: value for key, value in vars(data).items() if key != "files"}
    if not suites:
        task = SuiteTask(protocol=protocol.split(","), data=list(data.files), seed=seed, options=options, **same)
        return Suite(tasks={protocol.replace(",", "-"): task})
    fields = {"data": data.files, "protocol": protocol, **same, "split": data.split != "test", "limit": None}
    of_tasks = [*options, *(name for name, value in fields.items() if value), *([] if seed is None else ["seed"])]
    if of_tasks:
        raise XlsrError(f"--{of_tasks[0].replace('_', '-')} must be set in the tasks of the suite.")
    chosen = load_suite(*suites)
    for task in chosen.tasks.values():
        task.limit = data.limit or task.limit
    return chosen


def _print_tables(tables: list[Any]) -> None:
    from rich.console import Console

    from hf_xlsr.evaluation.comparison import LEGEND, terminal_table

    Console(highlight=False).print(*map(terminal_table, tables), LEGEND)


def compare(
    results: Annotated[
        list[str],
        typer.Argument(help="Files of hf-xlsr evaluate --output, as FILE or LABEL=FILE.", show_default=False),
    ],
    metric: Annotated[
        str | None, typer.Option(help="Metrics, with commas; by default the headline of each protocol.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(help="A .md, .csv, .tex or .json file; by default a table is printed, in a pipe as Markdown."),
    ] = None,
    plots: Annotated[str | None, typer.Option(metavar="DIR", help="Folder for a picture of each table.")] = None,
) -> None:
    """Compare encoders: tables with intervals, and tests of the differences."""
    from hf_xlsr.evaluation import comparison
    from hf_xlsr.utils.files import write_text

    ending = Path(output).suffix if output else ".md"
    require_choice("--output", ending, comparison.ENDINGS)
    tables = comparison.compare_encoders(load_labelled(results), metric.split(",") if metric else ())
    if plots is not None:
        from hf_xlsr.evaluation.plots import plot_comparisons

        plot_comparisons(plots, tables)
    if output is not None:
        write_text(output, comparison.render_tables(tables, ending))
    elif sys.stdout.isatty():
        _print_tables(tables)
    else:
        print(comparison.render_tables(tables), end="")


def _protocols_table() -> Any:
    from rich.table import Table

    table = Table("protocol", "what it measures, and on what", show_lines=True)
    table.columns[0].no_wrap = True
    for protocol in PROTOCOLS.values():
        lines = [protocol.summary, f"data: {protocol.data}"]
        if protocol.optional:
            lines.append(f"optional columns: {', '.join(protocol.optional)}")
        if specs := specs_of(protocol.options):
            lines.append("options: " + " ".join(f"--{option.replace('_', '-')}" for option in specs))
        table.add_row(protocol.name, "\n".join(lines))
    return table
