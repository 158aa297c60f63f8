"""The verbs `push` and `card` of the `hf-xlsr` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hf_xlsr.cli.options import MODEL

Place = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)]


def push(
    model: Place,
    repo: Annotated[str, typer.Option(metavar="OWNER/NAME", help="Repository of the encoder.")],
    private: Annotated[bool, typer.Option("--private", help="Make it private; the training state always is.")] = False,
    what: Annotated[
        Literal["encoder", "training", "all"],
        typer.Option(help="What to push; the training state goes to OWNER/NAME-training."),
    ] = "encoder",
    adapters: Annotated[
        bool, typer.Option("--adapters", help="Push the LoRA adapters alone instead of the encoder.")
    ] = False,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Write to a repository that was not pushed from here.")
    ] = False,
    message: Annotated[str | None, typer.Option(help="Message of the commit.")] = None,
) -> None:
    """Push a run or a model to the Hub.

    The access token is that of HF_TOKEN or of `hf auth login`. The same command resumes an interrupted upload.
    """
    from hf_xlsr.runs.publish import push_run

    for one in push_run(
        model, repo, what=what, adapters=adapters, private=private, exist_ok=exist_ok, message=message
    ):
        shown = "private" if one.private else "public"
        print(f"{one.url} ({shown}): {one.files} files, {one.size / 1e6:.1f} MB")


def card(
    model: Place,
    output: Annotated[
        str | None, typer.Option(help="File; by default README.md of the model, and of its run.")
    ] = None,
    license: Annotated[
        str | None, typer.Option(help="Licence of the weights by its name on the Hub, e.g. apache-2.0.")
    ] = None,
    base_model: Annotated[
        list[str] | None, typer.Option(metavar="OWNER/NAME", help="Models on the Hub that it started from.")
    ] = None,
    datasets: Annotated[
        list[str] | None, typer.Option(metavar="OWNER/NAME", help="Datasets on the Hub that it was trained on.")
    ] = None,
) -> None:
    """Write the card of a run or a model."""
    from hf_xlsr.encoders.loading import find_model
    from hf_xlsr.runs.card import card_of_model, card_of_run
    from hf_xlsr.runs.folder import RunFolder
    from hf_xlsr.utils.files import check_writable, write_text

    folder = RunFolder(model)
    of_run = folder.recipe.is_file()
    own = [folder.card, folder.model / "README.md"] if of_run else [Path(find_model(model).path) / "README.md"]
    places = [Path(output)] if output else own
    for place in places:
        check_writable(place, "--output" if output else "the card")
    given = {"license": license, "base_model": base_model, "datasets": datasets}
    chosen: dict[str, Any] = {key: value for key, value in given.items() if value}
    text = (card_of_run if of_run else card_of_model)(model, chosen)
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_text(place, text)
        print(place)
