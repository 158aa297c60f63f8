"""The verb `evaluate` of the `hf-xlsr` command."""

from __future__ import annotations

from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_xlsr.cli.options import MODEL, data_options, encoder_options, extended, labelled, parse_languages, shared
from hf_xlsr.evaluation.registry import FOR_ALL, PROTOCOLS, option_specs, specs_of
from hf_xlsr.utils.errors import XlsrError, require_choice

PANEL = "Options of some protocols (--list shows which)"


def protocol_parameters() -> list[Parameter]:
    """The options of protocols as parameters of a typer function."""
    found = []
    for spec in option_specs().values():
        if spec.name in FOR_ALL:
            continue
        flag = f"--{spec.name.replace('_', '-')}"
        text = f"{spec.help}: {', '.join(spec.choices)}" if spec.choices else spec.help
        kind: Any = bool if spec.type is bool else (list[str] if spec.several else spec.type) | None
        annotation = Annotated[kind, typer.Option(flag, help=text, rich_help_panel=PANEL, show_default=False)]
        default = False if spec.type is bool else None
        found.append(Parameter(spec.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))
    return found


@extended(*shared(), *protocol_parameters())
def evaluate(
    model: Annotated[str | None, typer.Argument(help=MODEL)] = None,
    protocol: Annotated[
        str | None, typer.Option(help="A protocol, or several with commas that take the same data.")
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="Print the protocols with their columns and options, and stop.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Name of the data in metric keys; by default the corpus or file name.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="File for the results, as JSON.")] = None,
    report: Annotated[str | None, typer.Option(metavar="DIR", help="Folder for a report with plots.")] = None,
    predictions: Annotated[
        bool, typer.Option("--predictions", help="Also save the outcome of each example, for hf-xlsr compare.")
    ] = False,
    **given: Any,
) -> None:
    """Evaluate any sentence encoder under a protocol."""
    from rich.console import Console

    if show_list:
        Console().print(_protocols_table())
        return
    if not (model and protocol and given["data"]):
        missing = "MODEL" if not model else "--protocol NAME" if not protocol else "--data FILE"
        raise XlsrError(f"{missing} is missing; see hf-xlsr evaluate --help, and --list for the protocols.")

    from hf_xlsr.evaluation.command import evaluate_files
    from hf_xlsr.evaluation.protocols.language_bias import SHARE
    from hf_xlsr.evaluation.report import results_table
    from hf_xlsr.evaluation.results import Results
    from hf_xlsr.runs.inputs import check_named

    files = {f"--{key.replace('_', '-')}": given.get(key) for key in ("data", "pool", "tune", "gold", "tune_gold")}
    check_named(model, files, parse_languages(given["languages"]))
    data, encoder, seed = data_options(given, name), encoder_options(given), given.pop("seed")
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    places: dict[str, Any] = {"output": output, "report": report, "predictions": predictions}
    results = evaluate_files(model, protocol, data, options, encoder=encoder, seed=seed, **places)
    # A share for each pair of languages is for the plot.
    shown = Results(record for record in results.records.values() if not record.metric.startswith(SHARE))
    Console().print(results_table(shown, title=f"{model}, {protocol}"))


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
) -> None:
    """Compare encoders: tables with intervals, and tests of the differences."""
    from hf_xlsr.evaluation import comparison
    from hf_xlsr.evaluation.results import load_results
    from hf_xlsr.utils.files import write_text

    chosen = form or comparison.ENDINGS.get(Path(output or "").suffix, "markdown")
    require_choice("--format", chosen, comparison.FORMATS)
    found = {label: load_results(path) for label, path in labelled(results).items()}
    text = comparison.render(comparison.compare(found, metric.split(",") if metric else ()), chosen)
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
