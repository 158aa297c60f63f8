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

plot = typer.Typer(help="Plot translation pairs or retrieved languages.", context_settings=HELP, add_completion=False)


def _checked(output: str) -> str:
    from hf_xlsr.utils.files import check_writable

    if Path(output).suffix not in (".png", ".pdf", ".svg"):
        raise typer.BadParameter("the picture must end in .png, .pdf or .svg.")
    check_writable(output, "--output")
    return output


Picture = Annotated[str, typer.Option(help="The picture: .png, .pdf or .svg.", callback=_checked)]
Model = Annotated[str, typer.Argument(help=MODEL)]
Models = Annotated[list[str], typer.Argument(help="Models; LABEL=PATH names one in the plot.")]
Results = Annotated[list[str], typer.Argument(help="Results files; LABEL=PATH names one in the plot.")]
Pairs = Annotated[int, typer.Option(help="Random pairs of each two languages to plot.", min=2, max=100)]


@plot.command(cls=Verb, context_settings=HELP)
@extended(*shared(data=REQUIRED, seed=1))
def tsne(model: Model, output: Picture, pairs: Pairs = 15, **given: Any) -> None:
    """Plot embeddings of translations on a plane."""
    from hf_xlsr.evaluation.plots import plot_tsne
    from hf_xlsr.evaluation.rows import both_sides

    chosen, vectors = _encoded({"model": model}, pairs, given, most=1)
    ((languages, rows),) = chosen.items()
    print(plot_tsne(output, *vectors["model"][languages], *both_sides(rows), languages, seed=given["seed"]))


@plot.command(cls=Verb, context_settings=HELP)
@extended(*shared(data=REQUIRED, seed=1))
def spaces(
    models: Models,
    output: Picture,
    pairs: Annotated[int, typer.Option(help="Random pairs of each two languages to plot.", min=5, max=2000)] = 500,
    **given: Any,
) -> None:
    """Plot the spaces of several models, a panel for each language pair."""
    from hf_xlsr.evaluation.plots import plot_spaces

    _, found = _encoded(labelled(models), pairs, given)
    print(plot_spaces(output, found, seed=given["seed"]))


@plot.command(cls=Verb, context_settings=HELP)
def languages(results: Results, output: Picture) -> None:
    """Plot which languages retrieval finds."""
    from hf_xlsr.evaluation.plots import plot_languages

    print(plot_languages(output, load_labelled(results)))


def _encoded(models: Mapping[str, str], pairs: int, given: dict[str, Any], most: int | None = None) -> Any:
    """Random rows by language pair, and vectors of both sides by model and language pair."""
    from hf_xlsr.encoders.loading import check_choice, load_encoder
    from hf_xlsr.evaluation.pairs import encode_pairs
    from hf_xlsr.evaluation.protocols.tatoeba import PROTOCOLS
    from hf_xlsr.evaluation.reading import read_pairs
    from hf_xlsr.evaluation.rows import both_sides, by_pair, random_rows

    options = encoder_options(given)
    for model in models.values():
        check_choice(model, options.device, options.dtype)
    groups = by_pair(read_pairs(PROTOCOLS[0], data_options(given), {}).rows)
    if most and len(groups) > most:
        named = ", ".join(map("-".join, groups))
        raise XlsrError(f"the data contain the language pairs {named}; choose one with --languages.")
    chosen = {pair: random_rows(rows, pairs, given["seed"]) for pair, rows in groups.items()}
    found: dict[str, dict[tuple[str, str], Any]] = {}
    for label, model in models.items():
        encoder, found[label] = load_encoder(model, options.device, options.dtype), {}
        for pair, rows in chosen.items():
            found[label][pair] = encode_pairs(encoder, *both_sides(rows), pair, **options.encoding)
    return chosen, found
