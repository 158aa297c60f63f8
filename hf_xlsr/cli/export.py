"""The verbs `export`, `prune`, `push` and `card`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hf_xlsr.cli.options import MODEL, TEXT_OPTIONS, TEXTS, extended, new_folder, parse_named, read_texts
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import require_package


def export(
    model: Annotated[str, typer.Argument(help=f"{MODEL} Of a run, the trained weights are exported.")],
    output: Annotated[str, typer.Option(help="Folder, new or empty.")],
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also onnx/model.onnx: tokens to sentence embeddings in one graph.")
    ] = False,
    int8: Annotated[bool, typer.Option("--int8", help="Also onnx/model_quantized.onnx, quantized.")] = False,
    route: Annotated[
        str | None, typer.Option(help="Only the encoder of this language, without routes: for transformers.js.")
    ] = None,
    tokenizer: Annotated[
        list[str] | None,
        typer.Option(help="FOLDER, or LANG=FOLDER for each, of a saved model; by default the one next to it."),
    ] = None,
) -> None:
    """Export an encoder: sentence-transformers, AutoModel, ONNX."""
    from transformers import logging as transformers_logging

    from hf_xlsr.encoders.loading import load_encoder
    from hf_xlsr.encoders.reading import find_model, read_saved
    from hf_xlsr.export.hub import folder_files
    from hf_xlsr.export.sentence_transformer import save_export
    from hf_xlsr.runs.card import PLOTS

    transformers_logging.disable_progress_bar()
    home = new_folder(output).resolve()
    if onnx or int8:
        require_package("onnx", "onnxscript", "onnxruntime")
    source = find_model(model, trained=True)
    copied = {}
    if source.model_type:
        exported = read_saved(source, _tokenizer(tokenizer)).detached().assemble()
    elif not route and (Path(source.path) / "modules.json").is_file():
        copied = folder_files(Path(source.path))
    else:
        exported = load_encoder(model, "cpu")
    if route:
        from hf_xlsr.encoders.assembly import single_route

        exported = single_route(exported, route)
    partial = home.with_name(home.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        if copied:
            for name, file in copied.items():
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, partial / name)
        else:
            save_export(exported, partial)
            # A run's card and plots, which describe all routes.
            for file in map(Path(model).joinpath, () if route else ("model/README.md", *PLOTS)):
                if file.is_file():
                    shutil.copyfile(file, partial / file.name)
        files: dict[str, dict[str, float]] = {}
        if onnx or int8:
            from hf_xlsr.export.onnx_files import write_onnx

            files = write_onnx(partial, int8=int8)
        home.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(home)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print(f'SentenceTransformer("{output}")')
    for route, numbers in files.items():
        folder = Path(output) / "onnx" / route
        print(f"{folder / 'model.onnx'}: at most {numbers['difference']:.0e} from torch")
        if "cosine_int8" in numbers:
            print(f"{folder / 'model_quantized.onnx'}: cosine with torch {numbers['cosine_int8']:.4f} or more")


def _tokenizer(given: list[str] | None) -> Any:
    """The tokenizer of `--tokenizer`, or one for each language; None if it is not given."""
    from hf_xlsr.encoders.reading import read_tokenizer

    if not given:
        return None
    if len(given) == 1 and ("=" not in given[0] or Path(given[0]).exists()):
        return read_tokenizer(given[0], "--tokenizer")
    return {name: read_tokenizer(path, "--tokenizer") for name, path in parse_named(given, "--tokenizer").items()}


@extended(*TEXT_OPTIONS)
def prune(
    model: Annotated[str, typer.Argument(help=MODEL)],
    output: Annotated[str, typer.Option(help="Folder, new or empty.")],
    texts: Annotated[list[str] | None, TEXTS] = None,
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
    from transformers import logging as transformers_logging

    from hf_xlsr.data.formats.quarantine import Quarantine
    from hf_xlsr.encoders.loading import load_encoder
    from hf_xlsr.export import card
    from hf_xlsr.export.hub import CARD, is_hub_id
    from hf_xlsr.export.pruning import prune as prune_model
    from hf_xlsr.export.sentence_transformer import save_export
    from hf_xlsr.runs.card import card_of_model
    from hf_xlsr.runs.recipe import load_runs

    transformers_logging.disable_progress_bar()
    if bool(texts) == bool(recipe):
        raise XlsrError("Give either --texts or --recipe.")
    try:
        numbers = None if layers is None else [int(number) for number in layers.split(",")]
    except ValueError:
        raise XlsrError(f"--layers must be numbers separated by commas, got '{layers}'.") from None
    home = new_folder(output)
    if recipe:
        run = load_runs(recipe)[0]
        languages, words = list(run.recipe.languages), _training_texts(run)
    else:
        found = read_texts(model, texts or [], given, Quarantine())
        languages, words = list(found), chain.from_iterable(found.values())
    pruned, report = prune_model(load_encoder(model, "cpu"), words, layers=numbers, vocab_size=vocab_size)
    save_export(pruned, home)
    chosen: dict[str, Any] = {"language": languages}
    if is_hub_id(model) and not Path(model).exists():
        chosen["base_model"] = model
    (tokens, left), (layers_before, layers_after) = report["tokens"], report["layers"]
    origin = (
        f"Pruned from {card.code(card.public_path(model))} for {', '.join(map(card.code, languages))}: "
        f"{left:,} of {tokens:,} tokens, {layers_after} of {layers_before} layers."
    )
    (home / CARD).write_text(card_of_model(str(home), chosen, origin), "utf-8")
    print(json.dumps({"output": output, **report}, indent=2))


def _training_texts(run: Any) -> Iterator[str]:
    from hf_xlsr.data.formats.quarantine import Quarantine
    from hf_xlsr.data.sources import open_source, parse_sources
    from hf_xlsr.runs.inputs import check_inputs

    check_inputs([run])
    content = run.recipe
    for source in parse_sources(content.data.train):
        for row in open_source(source, languages=content.languages, quarantine=Quarantine(), seed=content.seed):
            yield from (row["source"], row["target"])


Place = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)]


def push(
    model: Place,
    repo: Annotated[str, typer.Option(metavar="OWNER/NAME", help="Repository of the encoder.")],
    private: Annotated[bool, typer.Option("--private", help="Make it private; the training state always is.")] = False,
    what: Annotated[
        Literal["encoder", "training", "all"],
        typer.Option(help="What to push; the training state goes to OWNER/NAME-training."),
    ] = "encoder",
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Write to a repository that was not pushed from here.")
    ] = False,
    message: Annotated[str | None, typer.Option(help="Message of the commit.")] = None,
) -> None:
    """Push a run or a model to the Hub.

    The access token is that of HF_TOKEN or of `hf auth login`. The same command resumes an interrupted upload.
    """
    from hf_xlsr.runs.publish import push_run

    for one in push_run(model, repo, what=what, private=private, exist_ok=exist_ok, message=message):
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
    from hf_xlsr.encoders.reading import find_model
    from hf_xlsr.runs.card import card_of_model, card_of_run
    from hf_xlsr.runs.folder import RunFolder
    from hf_xlsr.utils.files import check_writable, write_text

    folder = RunFolder(model)
    of_run = folder.recipe.is_file()
    own = [folder.card, folder.model / "README.md"] if of_run else [Path(find_model(model).path) / "README.md"]
    if not (of_run or output or own[0].parent.is_dir()):  # a new folder would hide the model on the Hub
        raise XlsrError(f"'{model}' is on the Hub. Name the file of its card with --output.")
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
