"""The verb `plot` of the `hf-xlsr` command: a command for each kind of plot."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_xlsr.cli.options import DATA, MODEL, SEED, ModelOptions, RowOptions, labelled, load_labelled
from hf_xlsr.cli.verbs import HELP, add_verb
from hf_xlsr.utils.console import say
from hf_xlsr.utils.errors import XlsrError

PICTURE = typer.Option(help="The picture: .png, .pdf or .svg.")


@dataclass(kw_only=True)
class PairsOptions(ModelOptions, RowOptions):
    """Translations to plot."""

    output: Annotated[str, PICTURE]
    data: Annotated[list[str], DATA]
    seed: Annotated[int, SEED] = 1


@dataclass(kw_only=True)
class TsneOptions(PairsOptions):
    """Options of `hf-xlsr plot tsne`."""

    model: Annotated[str, typer.Argument(help=MODEL)]
    pairs: Annotated[int, typer.Option(help="Random pairs of the two languages to plot.", min=2, max=100)] = 15


def tsne(options: TsneOptions) -> None:
    """Plot embeddings of translations on a plane.

    Example: hf-xlsr plot tsne MODEL --data test.tsv --columns source=en,target=fr --output tsne.png
    """
    from hf_xlsr.evaluation.plots import plot_tsne
    from hf_xlsr.evaluation.rows import both_sides

    rows_of_pair, vectors = _encoded({"model": options.model}, options.pairs, options, single=True)
    ((languages, rows),) = rows_of_pair.items()
    sides = vectors["model"][languages]
    say(plot_tsne(options.output, *sides, *both_sides(rows), languages, seed=options.seed))


@dataclass(kw_only=True)
class SpacesOptions(PairsOptions):
    """Options of `hf-xlsr plot spaces`."""

    models: Annotated[list[str], typer.Argument(help="Models; LABEL=PATH names one in the plot.")]
    pairs: Annotated[int, typer.Option(help="Random pairs of each two languages to plot.", min=5, max=2000)] = 500


def spaces(options: SpacesOptions) -> None:
    """Plot the spaces of several models, a panel for each language pair.

    Example: hf-xlsr plot spaces ours=MODEL other=NAME --data wide.parquet --languages en,de --output spaces.png
    """
    from hf_xlsr.evaluation.plots import plot_spaces

    _, vectors = _encoded(labelled(options.models), options.pairs, options)
    say(plot_spaces(options.output, vectors, seed=options.seed))


@dataclass(kw_only=True)
class LanguagesOptions:
    """Options of `hf-xlsr plot languages`."""

    results: Annotated[list[str], typer.Argument(help="Results files; LABEL=PATH names one in the plot.")]
    output: Annotated[str, PICTURE]


def languages(options: LanguagesOptions) -> None:
    """Plot which languages retrieval finds.

    Example: hf-xlsr plot languages bias.json --output languages.png
    """
    from hf_xlsr.evaluation.plots import plot_languages
    from hf_xlsr.runs.inputs import check_named

    check_named(None, {"RESULTS": list(labelled(options.results).values())}, outputs=[options.output])
    _check_picture(options.output)
    say(plot_languages(options.output, load_labelled(options.results)))


def _check_picture(output: str) -> None:
    from hf_xlsr.utils.files import check_writable

    if Path(output).suffix not in (".png", ".pdf", ".svg"):
        raise XlsrError(f"--output must end in .png, .pdf or .svg, got '{output}'.")
    check_writable(output, "--output")


def _encoded(
    models: Mapping[str, str],
    count: int,
    options: PairsOptions,
    single: bool = False,
) -> Any:
    """Random rows by language pair, and vectors of both sides by model and language pair.

    Args:
        models: Folder or Hub id by label.
        count: Number of rows of each language pair.
        options: The data, and how they are encoded.
        single: Refuse data of several language pairs.
    """
    from hf_xlsr.encoders.loading import check_choice
    from hf_xlsr.evaluation.pairs import encode_pairs
    from hf_xlsr.evaluation.protocols.tatoeba import PROTOCOLS
    from hf_xlsr.evaluation.reading import read_pairs
    from hf_xlsr.evaluation.rows import both_sides, by_pair, random_rows
    from hf_xlsr.runs.inputs import check_all_named

    _check_picture(options.output)
    data = options.data_options(options.data)
    check_all_named(models, {"--data": (data.files, data.languages)}, "the command", [options.output])
    encoder_options = options.encoder_options()
    for model in models.values():
        check_choice(model, encoder_options.device, encoder_options.dtype)

    groups = by_pair(read_pairs(PROTOCOLS[0], data, {}).rows)
    if single and len(groups) > 1:
        pairs = ", ".join(map("-".join, groups))
        raise XlsrError(f"the data contain the language pairs {pairs}; choose one with --languages.")
    rows_of_pair = {pair: random_rows(rows, count, options.seed) for pair, rows in groups.items()}

    vectors: dict[str, dict[tuple[str, str], Any]] = {}
    for label, model in models.items():
        encoder = encoder_options.load(model)
        vectors[label] = {}
        for pair, rows in rows_of_pair.items():
            vectors[label][pair] = encode_pairs(encoder, *both_sides(rows), pair, **encoder_options.encoding)
    return rows_of_pair, vectors


plot = typer.Typer(help="Plot translation pairs or retrieved languages.", context_settings=HELP, add_completion=False)
for verb in (tsne, spaces, languages):
    add_verb(plot, verb)
