"""The verb `export` of the `hf-xlsr` command."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_xlsr.cli.options import MODEL, new_folder, parse_named
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import require_package

TRAINED = "Of a run or a saved model"


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
    max_length: Annotated[
        int | None, typer.Option(help="Maximum number of tokens; by default the recipe's.", rich_help_panel=TRAINED)
    ] = None,
    tokenizer: Annotated[
        list[str] | None,
        typer.Option(help="FOLDER, or LANG=FOLDER for each; by default the one next to it.", rich_help_panel=TRAINED),
    ] = None,
) -> None:
    """Export an encoder: sentence-transformers, AutoModel, ONNX."""
    from transformers import logging as transformers_logging

    from hf_xlsr.encoders.loading import load_encoder
    from hf_xlsr.encoders.places import find_model
    from hf_xlsr.encoders.trained import trained_sentence_transformer
    from hf_xlsr.export.hub_upload import folder_files

    transformers_logging.disable_progress_bar()
    home = new_folder(output).absolute()
    if onnx or int8:
        require_package("onnx", "onnxscript", "onnxruntime")
    source = find_model(model, trained=True)
    copied = {}
    if route:
        from hf_xlsr.export.routed import single_route

        exported = single_route(load_encoder(model, "cpu"), route)
    elif source.architecture:
        exported = trained_sentence_transformer(source, tokenizer=_tokenizer(tokenizer), max_length=max_length)
    elif max_length or tokenizer:
        given = "--max-length" if max_length else "--tokenizer"
        raise XlsrError(f"{given} is only for a run or a saved model, but '{model}' is neither.")
    elif (Path(source.path) / "modules.json").is_file():
        copied = folder_files(Path(source.path))
    else:
        exported = load_encoder(model, "cpu")
    partial = home.with_name(home.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        if copied:
            for name, file in copied.items():
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, partial / name)
        else:
            _save(exported, model, max_length, partial)
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


def _save(model: Any, place: str, max_length: int | None, folder: Path) -> None:
    from hf_xlsr.export.sentence_transformer import save_export
    from hf_xlsr.runs.card import card_of_run

    card, text = Path(place) / "model" / "README.md", ""
    changed = {"data": {"max_length": max_length}} if max_length else {}
    if card.is_file():  # of a run, which describes its own export
        text = card_of_run(place, changed=changed) if changed else card.read_text("utf-8")
    save_export(model, folder)
    if text:
        (folder / "README.md").write_text(text, "utf-8")


def _tokenizer(given: list[str] | None) -> str | dict[str, str] | None:
    if given and len(given) == 1 and ("=" not in given[0] or Path(given[0]).exists()):
        return given[0]
    return parse_named(given, "--tokenizer") if given else None
