"""The verb `export` of the `hf-xlsr` command."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import require_package

TRAINED = "Of a run or a saved model"


def export(
    place: Annotated[str, typer.Argument(help="Folder of a run, of a checkpoint or saved model, or of an export.")],
    output: Annotated[str, typer.Option(help="Folder, new or empty.")],
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also onnx/model.onnx: tokens to sentence embeddings in one graph.")
    ] = False,
    int8: Annotated[bool, typer.Option("--int8", help="Also onnx/model_int8.onnx, quantized.")] = False,
    max_length: Annotated[
        int | None, typer.Option(help="Maximum number of tokens; by default the recipe's.", rich_help_panel=TRAINED)
    ] = None,
    tokenizer: Annotated[
        list[str] | None,
        typer.Option(help="FOLDER, or LANG=FOLDER for each; by default the one next to it.", rich_help_panel=TRAINED),
    ] = None,
) -> None:
    """Export a run's encoder: sentence-transformers, AutoModel, ONNX."""
    from transformers import logging as transformers_logging

    from hf_xlsr.evaluation.report import check_writable

    transformers_logging.disable_progress_bar()
    home = Path(output)
    check_writable(output, "--output", folder=True)
    if not home.name:
        raise XlsrError(f"--output is '{output}', the current folder; name a new one.")
    if home.is_dir() and any(home.iterdir()):
        raise XlsrError(f"--output '{home}' is not empty; name a new folder.")
    if onnx or int8:
        require_package("onnx", "onnxscript", "onnxruntime")
    source = _finished(Path(place))
    if source is None:
        from hf_xlsr.runs.trained import trained_sentence_transformer

        model = trained_sentence_transformer(place, tokenizer=_tokenizer(tokenizer), max_length=max_length)
    elif max_length or tokenizer:
        given = "--max-length" if max_length else "--tokenizer"
        raise XlsrError(f"{given} is for a run or a saved model, and '{place}' is an export already; remove it.")
    partial = home.with_name(home.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        if source is None:
            _save(model, place, max_length, partial)
        else:
            shutil.copytree(source, partial)
        files: dict[str, dict[str, float]] = {}
        if onnx or int8:
            from hf_xlsr.export.onnx_files import write_onnx

            files = write_onnx(partial, int8=int8)
        home.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(home)
    except OSError as error:
        raise XlsrError(f"'{home}' cannot be written ({error.strerror or error}); give another place.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print(f'SentenceTransformer("{home}")')
    for route, numbers in files.items():
        folder = home / "onnx" / route
        print(f"{folder / 'model.onnx'}: at most {numbers['difference']:.0e} from torch")
        if "cosine_int8" in numbers:
            print(f"{folder / 'model_int8.onnx'}: cosine with torch {numbers['cosine_int8']:.4f} or more")


def _finished(place: Path) -> Path | None:
    """The sentence-transformers folder that the place is, or that a run left whose training is gone."""
    if (place / "modules.json").is_file():
        return place
    model = place / "model"
    return model if (model / "modules.json").is_file() and not (place / "training").is_dir() else None


def _save(model: Any, place: str, max_length: int | None, folder: Path) -> None:
    from hf_xlsr.export.sentence_transformer import save_export
    from hf_xlsr.runs.card import card_of_run

    card, told = Path(place) / "model" / "README.md", ""
    changed = {"data": {"max_length": max_length}} if max_length else {}
    if card.is_file():  # of a run, which describes its own export
        told = card_of_run(place, changed=changed) if changed else card.read_text("utf-8")
    save_export(model, folder)
    if told:
        (folder / "README.md").write_text(told, "utf-8")


def _tokenizer(pieces: list[str] | None) -> str | dict[str, str] | None:
    if not pieces:
        return None
    if len(pieces) == 1 and ("=" not in pieces[0] or Path(pieces[0]).exists()):
        return pieces[0]
    named = {}
    for piece in pieces:
        language, equals, path = piece.partition("=")
        if not (language and equals and path):
            raise XlsrError(f"--tokenizer has '{piece}'; write one folder, or LANGUAGE=FOLDER for each language.")
        named[language] = path
    return named
