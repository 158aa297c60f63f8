"""The verb `evaluate` of the `hf-xlsr` command."""

from __future__ import annotations

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
    parse_languages,
    shared,
)
from hf_xlsr.evaluation.registry import FOR_ALL, PROTOCOLS, option_specs, specs_of
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
    report: Annotated[str | None, typer.Option(metavar="DIR", help="Folder for a report with plots.")] = None,
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
    if suite and (protocol or given["data"]):
        raise XlsrError("a suite names its protocols and data; leave out --protocol and --data.")
    if several and report:
        raise XlsrError("--report is for one model; a suite and several models write tables and plots to --output.")
    of_task = {"MODEL": models, "--protocol NAME": protocol, "--data FILE": given["data"]}
    needed = {**({} if suite else of_task), **({"--output DIR": output} if several else {})}
    if missing := [option for option, value in needed.items() if not value]:
        raise XlsrError(f"{missing[0]} is missing; see hf-xlsr evaluate --help, and --list for the protocols.")
    if several:
        _evaluate_suite(models, suite, protocol, name, str(output), vectors, given)
        return

    from hf_xlsr.evaluation.command import evaluate_files
    from hf_xlsr.evaluation.protocols.language_bias import SHARE
    from hf_xlsr.evaluation.report import results_table
    from hf_xlsr.evaluation.results import Results
    from hf_xlsr.runs.inputs import check_named

    files = {f"--{key.replace('_', '-')}": given.get(key) for key in ("data", "pool", "tune", "gold", "tune_gold")}
    check_named(models[0], files, parse_languages(given["languages"]))
    data, encoder, seed = data_options(given, name), encoder_options(given), given.pop("seed")
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    places: dict[str, Any] = {"output": output, "report": report, "predictions": predictions, "vectors": vectors}
    results = evaluate_files(models[0], str(protocol), data, options, encoder=encoder, seed=seed, **places)
    # A share for each pair of languages is for the plot.
    shown = Results(record for record in results.records.values() if not record.metric.startswith(SHARE))
    Console().print(results_table(shown, title=f"{models[0]}, {protocol}"))


def _evaluate_suite(
    models: list[str],
    suite: list[str] | None,
    protocol: str | None,
    name: str | None,
    output: str,
    vectors: str | None,
    given: dict[str, Any],
) -> None:
    from rich.console import Console

    from hf_xlsr.data.columns import parse_columns
    from hf_xlsr.evaluation.comparison import LEGEND, terminal_table
    from hf_xlsr.evaluation.suites import Suite, SuiteEncoder, SuiteTask, evaluate_suite, load_suite
    from hf_xlsr.evaluation.table import parse_where
    from hf_xlsr.runs.inputs import check_all_named

    data, encoder, seed = data_options(given, name), encoder_options(given), given.pop("seed")
    options = {key: value for key, value in given.items() if value is not None and value is not False}
    if not suite:
        same = {key: getattr(data, key) for key in ("split", "config", "limit", "name")}
        task = SuiteTask(
            protocol=str(protocol).split(","),
            data=list(data.files),
            columns=parse_columns(data.columns),
            languages=list(data.languages),
            where=parse_where(data.where),
            seed=seed,
            options=options,
            **same,
        )
        chosen = Suite(tasks={str(protocol).replace(",", "-"): task})
    else:
        fields = [field for field in ("columns", "languages", "where", "config", "name") if getattr(data, field)]
        if of_tasks := [*options, *fields, *([] if seed is None else ["seed"])]:
            raise XlsrError(f"--{of_tasks[0].replace('_', '-')} belongs into the tasks of the suite.")
        chosen = load_suite(*suite)
        for one in chosen.tasks.values():
            one.limit = data.limit or one.limit
    for label, path in labelled(models).items():
        chosen.encoders[label] = SuiteEncoder(model=path, **vars(encoder))
    check_all_named(
        {f"encoder {label}": one.model for label, one in chosen.encoders.items()},
        {f"task {name}": (task.data, task.languages) for name, task in chosen.tasks.items()},
        "the suite" if suite else "the command",
    )
    tables = evaluate_suite(chosen, output, vectors=vectors)
    for table in tables:
        Console().print(terminal_table(table))
    Console().print(LEGEND)


def compare(
    results: Annotated[
        list[str],
        typer.Argument(help="Files of hf-xlsr evaluate --output, as FILE or LABEL=FILE.", show_default=False),
    ],
    metric: Annotated[
        str | None, typer.Option(help="Metrics, with commas; by default the headline of each protocol.")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="markdown, csv, latex or json; by default what --output ends in.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="File to write; by default standard output.")] = None,
    plots: Annotated[str | None, typer.Option(metavar="DIR", help="Folder for a picture of each table.")] = None,
) -> None:
    """Compare encoders: tables with intervals, and tests of the differences."""
    from hf_xlsr.evaluation import comparison
    from hf_xlsr.evaluation.results import load_results
    from hf_xlsr.utils.files import write_text

    chosen = form or comparison.ENDINGS.get(Path(output or "").suffix, "markdown")
    require_choice("--format", chosen, comparison.FORMATS)
    found = {label: load_results(path) for label, path in labelled(results).items()}
    tables = comparison.compare(found, metric.split(",") if metric else ())
    text = comparison.render(tables, chosen)
    if plots is not None:
        from hf_xlsr.evaluation.plots import plot_comparisons

        plot_comparisons(plots, tables)
    if output is None:
        print(text, end="")
    else:
        write_text(output, text)


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
