"""The verb `plot` of the `hf-xlsr` command: a command for each kind of plot."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_xlsr.cli.options import HELP, MODEL, REQUIRED, Verb, data_options, encoder_options, extended, labelled, shared
from hf_xlsr.utils.errors import XlsrError

plot = typer.Typer(
    help="Plot translation pairs, retrieval results, retrieved languages or training runs.",
    context_settings=HELP,
    add_completion=False,
)
Picture = Annotated[str, typer.Option(help="The picture: .png, .pdf or .svg.")]
Model = Annotated[str, typer.Argument(help=MODEL)]
Models = Annotated[list[str], typer.Argument(help="Models; LABEL=PATH names one in the plot.")]
Results = Annotated[list[str], typer.Argument(help="Results files; LABEL=PATH names one in the plot.")]
Runs = Annotated[list[str], typer.Argument(help="Folders of runs; LABEL=PATH names one in the plot.")]
Pairs = Annotated[int, typer.Option(help="Random pairs of each two languages to plot.", min=2)]
Metric = Annotated[str | None, typer.Option(help="Last part of the metric keys to plot, e.g. precision@5.")]
Protocols = Annotated[str | None, typer.Option(help="First parts of the metric keys to plot, separated by commas.")]


def _checked(output: str, models: Iterable[str] = (), options: Any = None) -> str:
    """The output, after a check of it and of what would be loaded."""
    from hf_xlsr.encoders.loading import check_choice
    from hf_xlsr.evaluation.plots.common import check_picture
    from hf_xlsr.utils.files import check_writable

    check_picture(output)
    check_writable(output, "--output")
    for model in models:
        check_choice(model, options.device, options.dtype)
    return output


@plot.command(cls=Verb, context_settings=HELP)
@extended(*shared(data=REQUIRED))
def tsne(model: Model, output: Picture, pairs: Pairs = 15, **given: Any) -> None:
    """Plot embeddings of translations on a plane."""
    _plot_pairs("plot_tsne", model, output, pairs, given)


@plot.command(cls=Verb, context_settings=HELP)
@extended(*shared(data=REQUIRED))
def heatmap(model: Model, output: Picture, pairs: Pairs = 15, **given: Any) -> None:
    """Plot the cosines of translations."""
    _plot_pairs("plot_heatmap", model, output, pairs, given)


@plot.command(cls=Verb, context_settings=HELP)
@extended(*shared(data=REQUIRED))
def spaces(
    models: Models,
    output: Picture,
    pairs: Annotated[int, typer.Option(help="Random pairs of each two languages to plot.", min=5, max=2000)] = 500,
    **given: Any,
) -> None:
    """Plot the spaces of several models, a panel for each language pair."""
    from hf_xlsr.evaluation.plots import plot_spaces
    from hf_xlsr.evaluation.plots.spaces import check_panels

    named, seed = labelled(models), given["seed"] or 1
    options = encoder_options(given)
    _checked(output, named.values(), options)
    chosen = _chosen_pairs(given, pairs, seed)
    check_panels(dict.fromkeys(named, {pair: (len(rows), len(rows)) for pair, rows in chosen.items()}))
    print(plot_spaces(output, {label: _encoded(path, chosen, options) for label, path in named.items()}, seed=seed))


@plot.command(cls=Verb, context_settings=HELP)
def retrieval(results: Results, output: Picture, metric: Metric = None, protocol: Protocols = None) -> None:
    """Plot retrieval results by language."""
    from hf_xlsr.evaluation.plots import plot_retrieval
    from hf_xlsr.evaluation.results import load_results

    found = {label: load_results(path) for label, path in labelled(results).items()}
    print(plot_retrieval(_checked(output), found, metric=metric, protocols=protocol.split(",") if protocol else None))


@plot.command(cls=Verb, context_settings=HELP)
def languages(results: Results, output: Picture, protocol: Protocols = None) -> None:
    """Plot which languages retrieval finds."""
    from hf_xlsr.evaluation.plots.languages import plot_languages
    from hf_xlsr.evaluation.results import load_results

    found = {label: load_results(path) for label, path in labelled(results).items()}
    print(plot_languages(_checked(output), found, protocol.split(",") if protocol else None))


@plot.command(cls=Verb, context_settings=HELP)
def curves(runs: Runs, output: Picture, metric: Metric = None) -> None:
    """Plot losses or metrics over the steps of training runs."""
    from hf_xlsr.evaluation.plots import plot_curves

    _checked(output)
    found = {label: _log_history(path) for label, path in labelled(runs).items()}
    print(plot_curves(output, found, metrics=metric.split(",") if metric else None))


def _plot_pairs(draw: str, model: str, output: str, pairs: int, given: dict[str, Any]) -> None:
    from hf_xlsr.evaluation import plots
    from hf_xlsr.evaluation.rows import both_sides

    options, seed = encoder_options(given), given["seed"] or 1
    _checked(output, [model], options)
    chosen = _chosen_pairs(given, pairs, seed)
    if len(chosen) > 1:
        named = ", ".join("-".join(pair) for pair in chosen)
        raise XlsrError(f"the data contain the language pairs {named}; choose one with --languages.")
    ((pair, vectors),) = _encoded(model, chosen, options).items()
    print(getattr(plots, draw)(output, *vectors, *both_sides(chosen[pair]), pair, pairs=pairs, seed=seed))


def _chosen_pairs(given: dict[str, Any], pairs: int, seed: int) -> dict[tuple[str, str], list[Any]]:
    from hf_xlsr.evaluation.inputs import read_inputs
    from hf_xlsr.evaluation.registry import PROTOCOLS
    from hf_xlsr.evaluation.rows import by_pair, random_rows

    groups = by_pair(read_inputs(PROTOCOLS["tatoeba"], data_options(given)).only)
    return {pair: random_rows(rows, pairs, seed) for pair, rows in groups.items()}


def _encoded(model: str, chosen: dict[tuple[str, str], list[Any]], options: Any) -> dict[tuple[str, str], Any]:
    from hf_xlsr.encoders.loading import load_encoder
    from hf_xlsr.evaluation.protocols.tatoeba import encode_pairs
    from hf_xlsr.evaluation.rows import both_sides

    encoder = load_encoder(model, options.device, options.dtype)
    return {pair: encode_pairs(encoder, *both_sides(rows), pair, **options.encoding) for pair, rows in chosen.items()}


def _log_history(path: str) -> list[dict[str, Any]]:
    """The log of a run of ours, of a Trainer's checkpoint, or of the file itself."""
    import json

    places = [Path(path), *(Path(path) / name for name in ("training/log.json", "log.json", "trainer_state.json"))]
    file = next((place for place in places if place.is_file()), None)
    try:
        content = json.loads(file.read_text("utf-8")) if file else None
    except ValueError:
        content = None
    history = content.get("log_history") if isinstance(content, dict) else content
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise XlsrError(f"'{path}' has no training log, as a run, its log.json or a trainer_state.json have.")
    return history
