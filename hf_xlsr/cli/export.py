"""The verb `export` of the `hf-xlsr` command."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from hf_xlsr.utils.errors import XlsrError

# What a finished export cannot be told any more.
OF_TRAINED = ("max_length", "tokenizer")


def configure_export(parser: argparse.ArgumentParser) -> None:
    """Adds the words and options of `hf-xlsr export`."""
    parser.add_argument("place", help="folder of a run, of a checkpoint or saved model, or of an export")
    parser.add_argument("--output", required=True, help="folder, new or empty")
    parser.add_argument("--json", action="store_true", help="print JSON")
    forms = parser.add_argument_group("beside the sentence-transformers folder").add_argument
    forms("--onnx", action="store_true", help="onnx/model.onnx: pieces to sentence vectors in one graph")
    forms("--int8", action="store_true", help="also onnx/model_int8.onnx, quantised")
    trained = parser.add_argument_group("of a run or a saved model").add_argument
    trained("--max-length", type=int, help="longest sentence, in pieces (default: the recipe's)")
    trained("--tokenizer", nargs="+", metavar="FOLDER", help="or LANG=FOLDER for each (default: the one beside it)")


def export(options: argparse.Namespace, rest: list[str]) -> int:
    """Runs `hf-xlsr export`."""
    from transformers import logging as transformers_logging

    from hf_xlsr.encoders.onnx import import_onnx
    from hf_xlsr.evaluation.report import check_writable

    transformers_logging.disable_progress_bar()
    home, onnx = Path(options.output), options.onnx or options.int8
    check_writable(options.output, "--output", folder=True)
    if not home.name:  # it would be put in the place of the folder where the shell stands
        raise XlsrError(f"--output is '{options.output}', the folder where you are; give the name of a new one.")
    if home.is_dir() and any(home.iterdir()):
        raise XlsrError(f"--output is '{home}', a folder with files in it; give a new one.")
    if onnx:
        import_onnx("onnx", "onnxscript", "onnxruntime")
    source = _finished(Path(options.place))
    if source is None:
        model = _trained(options)
    else:
        _refuse(options)
    partial = home.with_name(home.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        if source is None:
            _save(model, options, partial)
        else:
            shutil.copytree(source, partial)
        files: dict[str, dict[str, float]] = {}
        if onnx:
            from hf_xlsr.export.onnx_files import write_onnx

            files = write_onnx(partial, int8=options.int8)
        home.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(home)
    except OSError as error:
        raise XlsrError(f"'{home}' cannot be written ({error.strerror or error}); give another place.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _print(options, home, files)
    return 0


def _finished(place: Path) -> Path | None:
    """The sentence-transformers folder that the place is, or that a run left whose training is gone."""
    if (place / "modules.json").is_file():
        return place
    model = place / "model"
    return model if (model / "modules.json").is_file() and not (place / "training").is_dir() else None


def _refuse(options: argparse.Namespace) -> None:
    for name in OF_TRAINED:
        if getattr(options, name):
            raise XlsrError(
                f"--{name.replace('_', '-')} is for a run or a saved model, and '{options.place}' is an export already; "
                "leave it out."
            )


def _trained(options: argparse.Namespace) -> Any:
    from hf_xlsr.runs.trained import trained_sentence_transformer

    return trained_sentence_transformer(
        options.place, tokenizer=_tokenizer(options.tokenizer), max_length=options.max_length
    )


def _save(model: Any, options: argparse.Namespace, folder: Path) -> None:
    from hf_xlsr.export.sentence_transformer import save_export
    from hf_xlsr.runs.card import card_of_run

    card, told = Path(options.place) / "model" / "README.md", ""
    changed = {"data": {"max_length": options.max_length}} if options.max_length else {}
    if card.is_file():  # that of a run tells of its own export
        told = card_of_run(options.place, changed=changed) if changed else card.read_text("utf-8")
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


def _print(options: argparse.Namespace, home: Path, files: dict[str, dict[str, float]]) -> None:
    loading = f'SentenceTransformer("{home}")'
    if options.json:
        print(json.dumps({"output": str(home), "load": [loading], "onnx": files}, indent=2, ensure_ascii=False))
        return
    print(loading)
    for route, numbers in files.items():
        place = home / "onnx" / route if route else home / "onnx"
        print(f"{place / 'model.onnx'}: at most {numbers['difference']:.0e} from torch")
        if "cosine_int8" in numbers:
            print(f"{place / 'model_int8.onnx'}: cosine with torch {numbers['cosine_int8']:.4f} or more")
