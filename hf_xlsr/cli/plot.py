"""The verb `plot` of the `hf-xlsr` command: a command for each kind of plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_xlsr.cli.options import (
    HELP,
    MODEL,
    REQUIRED,
    Verb,
    data_options,
    encoder_options,
    extended,
    labelled,
    load_labelled,
    shared,
)
from hf_xlsr.utils.errors import XlsrError

plot = typer.Typer(
    help="Plot translation pairs, retrieval results, retrieved languages or training runs.",
    context_settings=HELP,
    add_completion=False,
)


def _checked(output: str) -> str:
    from hf_xlsr.evaluation.plots.common import check_picture
    from hf_xlsr.utils.files import check_writable

    check_picture(output)
    check_writable(output, "--output")
    return output


Picture = Annotated[str, typer.Option(help="The picture: .png, .pdf or .svg.", callback=_checked)]
Model = Annotated[str, typer.Argument(help=MODEL)]
Models = Annotated[list[str], typer.Argument(help="Models; LABEL=PATH names one in the plot.")]
Results = Annotated[list[str], typer.Argument(help="Results files; LABEL=PATH names one in the plot.")]
Runs = Annotated[list[str], typer.Argument(help="Folders of runs; LABEL=PATH names one in the plot.")]
Pairs = Annotated[int, typer.Option(help="Random pairs of each two languages to plot.", min=2)]
Metric = Annotated[str | None, typer.Option(help="Last part of the metric keys to plot, e.g. precision@5.")]
Protocols = Annotated[str | None, typer.Option(help="First parts of the metric keys to plot, separated by commas.")]


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

    _, found = _encoded(labelled(models), pairs, given)
    print(plot_spaces(output, found, seed=given["seed"] or 1))


@plot.command(cls=Verb, context_settings=HELP)
def retrieval(results: Results, output: Picture, metric: Metric = None, protocol: Protocols = None) -> None:
    """Plot results by language, a panel for each protocol and direction."""
    from hf_xlsr.evaluation.plots import plot_retrieval

    protocols = protocol.split(",") if protocol else None
    print(plot_retrieval(output, load_labelled(results), metric=metric, protocols=protocols))


@plot.command(cls=Verb, context_settings=HELP)
def languages(results: Results, output: Picture, protocol: Protocols = None) -> None:
    """Plot which languages retrieval finds."""
    from hf_xlsr.evaluation.plots import plot_languages

    print(plot_languages(output, load_labelled(results), protocol.split(",") if protocol else None))


@plot.command(cls=Verb, context_settings=HELP)
def curves(runs: Runs, output: Picture, metric: Metric = None) -> None:
    """Plot losses or metrics over the steps of training runs."""
    from hf_xlsr.evaluation.plots import plot_curves

    found = {label: _log_history(path) for label, path in labelled(runs).items()}
    print(plot_curves(output, found, metrics=metric.split(",") if metric else None))


def _plot_pairs(draw: str, model: str, output: str, pairs: int, given: dict[str, Any]) -> None:
    from hf_xlsr.evaluation import plots
    from hf_xlsr.evaluation.rows import both_sides

    ((pair, rows),), vectors = _encoded({"model": model}, pairs, given, most=1)
    seed = given["seed"] or 1
    print(getattr(plots, draw)(output, *vectors["model"][pair], *both_sides(rows), pair, pairs=pairs, seed=seed))


def _encoded(
    models: Mapping[str, str], pairs: int, given: dict[str, Any], most: int | None = None
) -> tuple[list[tuple[tuple[str, str], list[Any]]], dict[str, dict[tuple[str, str], Any]]]:
    """Random rows of each language pair, and by model and pair the vectors of both sides."""
    from hf_xlsr.encoders.loading import check_choice, load_encoder
    from hf_xlsr.evaluation.protocols.tatoeba import PROTOCOLS, encode_pairs
    from hf_xlsr.evaluation.rows import both_sides, by_pair, random_rows

    options = encoder_options(given)
    for model in models.values():
        check_choice(model, options.device, options.dtype)
    protocol = PROTOCOLS[0]
    groups = by_pair(protocol.read(protocol, data_options(given), {}).only)
    if most and len(groups) > most:
        named = ", ".join(map("-".join, groups))
        raise XlsrError(f"the data contain the language pairs {named}; choose one with --languages.")
    chosen = [(pair, random_rows(rows, pairs, given["seed"] or 1)) for pair, rows in groups.items()]
    found = {}
    for label, model in models.items():
        encoder = load_encoder(model, options.device, options.dtype)
        found[label] = {
            pair: encode_pairs(encoder, *both_sides(rows), pair, **options.encoding) for pair, rows in chosen
        }
    return chosen, found


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
