"""Options that several verbs of the `hf-xlsr` command take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_xlsr.utils.errors import XlsrError, error_line


def _option(help: str, panel: str | None = None, metavar: str | None = None, min: int | None = None) -> Any:
    return typer.Option(help=help, rich_help_panel=panel, metavar=metavar, min=min, show_default=False)


MODEL = "Folder of a run, a checkpoint, a saved model or an export, or a Hub id."
READING, ENCODING = "Reading data", "Encoding"
# Option -> its type, help and default.
SHARED: dict[str, tuple[Any, Any]] = {
    "data": (
        Annotated[list[str] | None, _option("Files, a corpus, or the id or folder of a dataset.", READING)],
        None,
    ),
    "columns": (
        Annotated[
            str | None,
            _option("Our column = column of the file; {lang} is each language: source=en,target={lang}.", READING),
        ],
        None,
    ),
    "languages": (
        Annotated[str | None, _option("Codes separated by commas, the source first, e.g. en,de,fr.", READING)],
        None,
    ),
    "split": (Annotated[str | None, _option("Split of the data, and of metric keys.", READING)], "test"),
    "where": (Annotated[list[str] | None, _option("Keep rows with these values.", READING, "COLUMN=VALUE")], None),
    "config": (Annotated[str | None, _option("Configuration of a dataset; may contain {lang}.", READING)], None),
    "limit": (Annotated[int | None, _option("Maximum number of rows of each language (pair).", READING, min=1)], None),
    "prompt": (Annotated[str, _option('Prepended to each sentence, e.g. "query: ".', ENCODING)], ""),
    "routes": (
        Annotated[
            str | None,
            _option("Language=route of a model with several encoders, e.g. en=source,de=target.", ENCODING),
        ],
        None,
    ),
    "batch_size": (Annotated[int | None, typer.Option(help="Sentences encoded at a time.")], 128),
    "device": (
        Annotated[str | None, _option("cpu, cuda, cuda:1, ...; by default the best there is.", ENCODING)],
        None,
    ),
    "dtype": (
        Annotated[
            str | None,
            _option(
                "float32, bfloat16, float16, onnx, onnx-int8, or auto, the fastest; by default as the model's files.",
                ENCODING,
            ),
        ],
        None,
    ),
    "seed": (Annotated[int | None, typer.Option(min=0, help="Seed of everything random.", show_default=False)], None),
}


REQUIRED: Any = inspect.Parameter.empty


def shared(*names: str, **defaults: Any) -> list[inspect.Parameter]:
    """Shared options as parameters: those named, else all; with other defaults where given, or `REQUIRED`."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(name, kind, annotation=annotation, default=defaults.get(name, default))
        for name, (annotation, default) in SHARED.items()
        if name in (names or SHARED)
    ]


def extended(*parameters: inspect.Parameter) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a function whose `**given` typer is to see as named parameters."""

    def extend(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function, eval_str=True)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=[*own, *parameters])  # type: ignore[attr-defined]
        return function

    return extend


def data_options(given: dict[str, Any], name: str | None = None) -> Any:
    """The `DataOptions` of a command line, taken out of `given`."""
    from hf_xlsr.evaluation.inputs import DataOptions

    values = {key: given.pop(key) for key in ("columns", "split", "config", "limit")}
    files, where = (tuple(given.pop(key) or ()) for key in ("data", "where"))
    return DataOptions(
        files=files, where=where, languages=tuple(parse_languages(given.pop("languages"))), name=name, **values
    )


def encoder_options(given: dict[str, Any]) -> Any:
    """The `EncoderOptions` of a command line, taken out of `given`."""
    from hf_xlsr.evaluation.command import EncoderOptions

    values = {key: given.pop(key) for key in ("prompt", "batch_size", "device", "dtype")}
    return EncoderOptions(routes=parse_routes(given.pop("routes")), **values)


def labelled(sources: Iterable[str]) -> dict[str, str]:
    """Path by label, of sources written LABEL=PATH; a path alone is labelled by its name.

    Examples:
        >>> labelled(["ours=runs/a/results.json", "runs/b.json"])
        {'ours': 'runs/a/results.json', 'b': 'runs/b.json'}
    """
    sources = list(sources)
    found: dict[str, str] = {}
    for source in sources:
        label, equals, path = source.partition("=")
        if not equals or Path(source).exists():
            path = source
            stems = [Path(other).stem for other in sources]
            label = Path(source).stem if stems.count(Path(source).stem) == 1 else source
        if label in found:
            raise XlsrError(f"two sources are labelled '{label}'; write LABEL=PATH.")
        found[label] = path
    return found


def parse_languages(text: str | None) -> list[str]:
    return [code.strip() for code in (text or "").split(",") if code.strip()]


def parse_named(parts: Iterable[str], option: str) -> dict[str, str]:
    """Values by language, of parts written LANGUAGE=VALUE.

    Examples:
        >>> parse_named(["en=source", " de=target"], "--routes")
        {'en': 'source', 'de': 'target'}
    """
    found = {}
    for part in parts:
        language, _, value = (text.strip() for text in part.partition("="))
        if not (language and value):
            raise XlsrError(f"`{option}` must be LANGUAGE=VALUE, got '{part}'.")
        found[language] = value
    return found


def parse_routes(text: str | None) -> dict[str, str]:
    return parse_named(text.split(",") if text else (), "--routes")


def new_folder(path: str) -> Path:
    """The folder of `--output`, which must be new or empty."""
    from hf_xlsr.utils.files import check_writable

    check_writable(path, "--output", folder=True)
    folder = Path(path)
    if folder.is_dir() and any(folder.iterdir()):
        raise XlsrError(f"--output '{path}' must be a new or empty folder.")
    return folder


def read_vectors(file: str) -> Any:
    """The matrix of a `.npy` file, memory-mapped; archives and pickles are not loaded."""
    import numpy as np

    try:
        vectors = np.lib.format.open_memmap(file, mode="r")
    except ValueError as error:
        raise XlsrError(f"{file} must be a .npy file with a matrix of real numbers ({error_line(error)}).") from error
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiub" or not len(vectors):
        raise XlsrError(f"{file} must hold a matrix of real numbers with one row per text.")
    return vectors
