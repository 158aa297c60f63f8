"""The verbs `export`, `prune` and `card`."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_xlsr.cli.options import MODEL, TEXTS, TextOptions, new_folder, parse_named, read_texts
from hf_xlsr.cli.report import in_words
from hf_xlsr.utils.console import say, warn
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import require_package
from hf_xlsr.utils.files import atomic_folder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from hf_xlsr.encoders.reading import ModelPlace
    from hf_xlsr.runs.methods import Method


@dataclass(kw_only=True)
class ExportOptions:
    """Options of `hf-xlsr export`."""

    model: Annotated[str, typer.Argument(help=f"{MODEL} Of a run, the trained weights are exported.")]
    output: Annotated[str, typer.Option(help="Folder, new or empty.")]
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also onnx/model.onnx: tokens to sentence embeddings in one graph.")
    ] = False
    openvino: Annotated[
        bool, typer.Option("--openvino", help="Also openvino/openvino_model.xml: the same graph for OpenVINO.")
    ] = False
    int8: Annotated[bool, typer.Option("--int8", help="Also these graphs quantized; alone, those of --onnx.")] = False
    route: Annotated[
        str | None, typer.Option(help="Only the encoder of this language, without routes: for transformers.js.")
    ] = None
    tokenizer: Annotated[
        list[str] | None,
        typer.Option(help="FOLDER, or LANG=FOLDER for each, of a saved model; by default the one next to it."),
    ] = None

    @property
    def with_onnx(self) -> bool:
        """Whether ONNX files are written; `--int8` alone means theirs."""
        return self.onnx or (self.int8 and not self.openvino)


def export(options: ExportOptions) -> None:
    """Export an encoder: sentence-transformers, AutoModel, ONNX, OpenVINO.

    Example: hf-xlsr export MODEL --output my-encoder --onnx --int8
    """
    from transformers import logging as transformers_logging

    from hf_xlsr.encoders.reading import find_model, named_folder
    from hf_xlsr.export.old_names import add_old_names
    from hf_xlsr.export.published_files import Listing, list_files
    from hf_xlsr.export.sentence_transformer import write_export
    from hf_xlsr.runs.inputs import check_named

    transformers_logging.disable_progress_bar()
    check_named(options.model, {}, outputs=[options.output])
    folder = new_folder(options.output)
    if options.with_onnx:
        require_package("onnx", "onnxscript", "onnxruntime")
    if options.openvino:
        require_package("openvino", "onnx", "onnxscript", *(["nncf"] if options.int8 else []))
    source = find_model(options.model, trained=True)
    home = named_folder(options.model)
    listing = Listing()
    if home.is_dir():
        listing = list_files(Path(source.path), root=home)
    model = _model_to_export(source, options)

    with atomic_folder(folder) as partial:
        if model is None:
            _copy_files(listing.files, partial)
            add_old_names(partial)
            if listing.left_out:
                warn(f"Not copied, as they are no files of a model: {', '.join(listing.left_out)}.")
        else:
            write_export(model, partial)
            if not options.route:
                _write_card(source, home, model, partial)
        reports = _write_graphs(partial, options)

    say(f'SentenceTransformer("{options.output}")')
    for name, report in reports.items():
        for route, numbers in report.items():
            say(f"{Path(options.output, name, route)} against torch: {in_words(numbers)}")


def _write_graphs(folder: Path, options: ExportOptions) -> dict[str, dict[str, dict[str, Any]]]:
    """Writes the graphs of an export; how they differ from torch, by kind and route."""
    reports: dict[str, dict[str, dict[str, Any]]] = {}
    if options.with_onnx:
        from hf_xlsr.export.onnx_files import write_onnx

        reports["onnx"] = write_onnx(folder, int8=options.int8)
    if options.openvino:
        from hf_xlsr.export.openvino_files import write_openvino

        reports["openvino"] = write_openvino(folder, int8=options.int8)
    return reports


def _model_to_export(source: "ModelPlace", options: ExportOptions) -> "SentenceTransformer | None":
    """The encoder with its settings; None for an export, whose files are copied."""
    from hf_xlsr.encoders.assembly import single_route
    from hf_xlsr.encoders.loading import load_encoder
    from hf_xlsr.encoders.reading import read_saved

    if source.model_type:
        model = read_saved(source, _tokenizer(options.tokenizer)).detached().assemble()
    elif not options.route and (Path(source.path) / "modules.json").is_file():
        return None
    else:
        model = load_encoder(options.model, "cpu")
    return single_route(model, options.route) if options.route else model


def _copy_files(files: Mapping[str, Path], folder: Path) -> None:
    for name, file in files.items():
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def _write_card(source: "ModelPlace", run: Path, model: "SentenceTransformer", folder: Path) -> None:
    """Copies the card and the plots of a run, which describe all routes; writes that of a saved model without a run."""
    from hf_xlsr.export.hub import CARD
    from hf_xlsr.export.model_card import PLOTS
    from hf_xlsr.export.published_files import named_files
    from hf_xlsr.runs.card import card_of_saved
    from hf_xlsr.utils.files import write_text

    for file in named_files(run, (f"model/{CARD}", *PLOTS)).values():
        shutil.copyfile(file, folder / file.name)
    if source.model_type and not (folder / CARD).is_file():
        write_text(folder / CARD, card_of_saved(source.path, model))


def _tokenizer(folders: list[str] | None) -> Any:
    """The tokenizer of `--tokenizer`, or one for each language; None if it is not given."""
    from hf_xlsr.data.tokenization import load_tokenizer

    if not folders:
        return None
    first = folders[0]
    if len(folders) == 1 and ("=" not in first or Path(first).exists()):
        return load_tokenizer(first, "--tokenizer")
    folder_of_language = parse_named(folders, "--tokenizer")
    return {language: load_tokenizer(folder, "--tokenizer") for language, folder in folder_of_language.items()}


@dataclass(kw_only=True)
class PruneOptions(TextOptions):
    """Options of `hf-xlsr prune`."""

    model: Annotated[str, typer.Argument(help=MODEL)]
    output: Annotated[str, typer.Option(help="Folder, new or empty.")]
    texts: Annotated[list[str] | None, TEXTS] = None
    recipe: Annotated[
        str | None, typer.Option(help="Instead of --texts: the training data of this recipe, name or file.")
    ] = None
    layers: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Layers to keep, from 0; by default all."),
    ] = None
    vocab_size: Annotated[
        int | None, typer.Option(help="Tokens to keep, the most frequent; by default all in the texts.", min=1)
    ] = None

    def layer_numbers(self) -> list[int] | None:
        if self.layers is None:
            return None
        try:
            return list(map(int, self.layers.split(",")))
        except ValueError:
            raise XlsrError(f"--layers must be numbers separated by commas, got '{self.layers}'.") from None


def prune(options: PruneOptions) -> None:
    """Make an encoder smaller: the tokens of some texts, and some of its layers.

    The embedding of a text changes only where its tokens do, unless layers are dropped: train such a model, see
    docs/distill.md.

    Example: hf-xlsr prune MODEL --texts en=en.txt de=de.txt --layers 0,1 --output student
    """
    from transformers import logging as transformers_logging

    from hf_xlsr.encoders.loading import load_encoder
    from hf_xlsr.export.card import code, public_path
    from hf_xlsr.export.hub import CARD, is_hub_id
    from hf_xlsr.export.pruning import prune as prune_model
    from hf_xlsr.export.sentence_transformer import write_export
    from hf_xlsr.runs.card import card_of_model
    from hf_xlsr.runs.inputs import check_named
    from hf_xlsr.utils.files import atomic_folder, write_text

    transformers_logging.disable_progress_bar()
    if bool(options.texts) == bool(options.recipe):
        raise XlsrError("Give either --texts or --recipe.")
    layers = options.layer_numbers()
    check_named(options.model, {}, outputs=[options.output])
    folder = new_folder(options.output)
    languages, texts = _texts_to_keep(options)

    encoder = load_encoder(options.model, "cpu")
    pruned, report = prune_model(encoder, texts, layers=layers, vocab_size=options.vocab_size)
    metadata: dict[str, Any] = {"language": languages}
    if is_hub_id(options.model) and not Path(options.model).exists():
        metadata["base_model"] = options.model
    tokens_before, tokens_after = report["tokens"]
    layers_before, layers_after = report["layers"]
    sizes = f"{tokens_after:,} of {tokens_before:,} tokens"
    if layers_before:
        sizes += f", {layers_after} of {layers_before} layers"
    origin = f"Pruned from {code(public_path(options.model))} for {', '.join(map(code, languages))}: {sizes}."
    with atomic_folder(folder) as partial:
        write_export(pruned, partial)
        write_text(partial / CARD, card_of_model(str(partial), metadata, origin))
    say(json.dumps({"output": options.output, **report}, indent=2))


def _texts_to_keep(options: PruneOptions) -> tuple[list[str], Iterable[str]]:
    """The languages, and the texts whose tokens stay."""
    from hf_xlsr.data.formats.quarantine import Quarantine
    from hf_xlsr.runs.recipe import load_runs

    if options.recipe:
        run = load_runs(options.recipe)[0]
        return list(run.recipe.languages), _training_texts(run)
    streams = read_texts(options.model, options.texts or [], options, Quarantine())
    return list(streams), chain.from_iterable(streams.values())


def _training_texts(run: "Method") -> Iterator[str]:
    from hf_xlsr.data.formats.quarantine import Quarantine
    from hf_xlsr.data.sources import open_source
    from hf_xlsr.runs.inputs import check_inputs

    check_inputs([run])
    recipe = run.recipe
    for source in run.sources("train"):
        for row in open_source(source, languages=recipe.languages, quarantine=Quarantine(), seed=recipe.seed):
            yield row["source"]
            yield row["target"]


@dataclass(kw_only=True)
class CardOptions:
    """Options of `hf-xlsr card`."""

    model: Annotated[str, typer.Argument(help=MODEL)]
    output: Annotated[str | None, typer.Option(help="File; by default README.md of the model, and of its run.")] = None
    license: Annotated[
        str | None, typer.Option(help="Licence of the weights by its name on the Hub, e.g. apache-2.0.")
    ] = None
    base_model: Annotated[
        list[str] | None, typer.Option(metavar="OWNER/NAME", help="Models on the Hub that it started from.")
    ] = None
    datasets: Annotated[
        list[str] | None, typer.Option(metavar="OWNER/NAME", help="Datasets on the Hub that it was trained on.")
    ] = None


def card(options: CardOptions) -> None:
    """Write the card of a run or a model.

    Example: hf-xlsr card outputs/quickstart --license cc-by-sa-4.0
    """
    from hf_xlsr.encoders.reading import find_model
    from hf_xlsr.export.model_card import CardMetadata
    from hf_xlsr.runs.card import card_of_model, card_of_run
    from hf_xlsr.runs.folder import RunFolder
    from hf_xlsr.runs.inputs import check_named
    from hf_xlsr.utils.files import check_writable, write_text

    run = RunFolder(options.model)
    is_run = run.recipe.is_file()
    folder = Path(find_model(options.model).path)
    if options.output:
        files = [Path(options.output)]
    elif is_run:
        files = [run.card, run.model / "README.md"]
    elif folder.is_dir():
        files = [folder / "README.md"]
    else:  # a new folder would hide the model on the Hub
        raise XlsrError(f"'{options.model}' is on the Hub. Name the file of its card with --output.")
    check_named(options.model, {}, outputs=files)
    for file in files:
        check_writable(file, "--output" if options.output else "the card")

    # Raises for a licence or an id that the Hub would refuse.
    CardMetadata(options.license, base_model=options.base_model, datasets=options.datasets)
    metadata = {"license": options.license, "base_model": options.base_model, "datasets": options.datasets}
    stated = {key: value for key, value in metadata.items() if value}
    write_card = card_of_run if is_run else card_of_model
    text = write_card(options.model, stated)
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
        say(file)
