"""The verb `prune`."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_xlsr.cli.options import MODEL, extended, new_folder, shared
from hf_xlsr.cli.texts import read_texts
from hf_xlsr.utils.errors import XlsrError

if TYPE_CHECKING:
    from collections.abc import Iterator


@extended(*shared("columns", "languages", "where", "config", "split", "limit", split=None))
def prune(
    model: Annotated[str, typer.Argument(help=MODEL)],
    output: Annotated[str, typer.Option(help="Folder, new or empty.")],
    texts: Annotated[
        list[str] | None,
        typer.Option(metavar="LANG=FILE", help="Texts of each language, or FILE with {lang} and --languages."),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Instead of --texts: the training data of this recipe, name or file.")
    ] = None,
    layers: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Layers to keep, from 0; by default all.")
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(help="Tokens to keep, the most frequent; by default all in the texts.", min=1)
    ] = None,
    **given: Any,
) -> None:
    """Make an encoder smaller: the tokens of some texts, and some of its layers.

    The embedding of a text changes only where its tokens do, unless layers are dropped: train such a model, see
    docs/distill.md.
    """
    import json

    from transformers import logging as transformers_logging

    from hf_xlsr.data.formats.quarantine import Quarantine
    from hf_xlsr.encoders.loading import load_encoder
    from hf_xlsr.export.pruning import prune as prune_model
    from hf_xlsr.export.sentence_transformer import save_export

    transformers_logging.disable_progress_bar()
    if bool(texts) == bool(recipe):
        raise XlsrError("Give either --texts or --recipe.")
    try:
        numbers = None if layers is None else [int(number) for number in layers.split(",")]
    except ValueError:
        raise XlsrError(f"--layers must be numbers separated by commas, got '{layers}'.") from None
    home = new_folder(output)
    if recipe:
        words: Iterator[str] = _training_texts(recipe)
    else:
        words = chain.from_iterable(read_texts(model, texts or [], given, Quarantine()).values())
    pruned, report = prune_model(load_encoder(model, "cpu"), words, layers=numbers, vocab_size=vocab_size)
    save_export(pruned, home)
    print(json.dumps({"output": output, **report}, indent=2))


def _training_texts(recipe: str) -> Iterator[str]:
    """Both sides of the training pairs of a recipe."""
    from hf_xlsr.data.formats.quarantine import Quarantine
    from hf_xlsr.data.sources import as_list, open_source
    from hf_xlsr.runs.inputs import check_inputs
    from hf_xlsr.runs.recipe import load_runs

    run = load_runs(recipe, [])[0]
    check_inputs([run])
    content = run.recipe
    for source in as_list(content.data.train):
        for row in open_source(source, languages=content.languages, quarantine=Quarantine(), seed=content.seed):
            yield from (row["source"], row["target"])
