"""The verbs `encode`, `debias fit` and `debias apply`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import typer

from hf_xlsr.cli.options import (
    ENCODING_OPTIONS,
    HELP,
    MODEL,
    TEXT_OPTIONS,
    Texts,
    Verb,
    encoder_options,
    extended,
    new_folder,
    read_texts,
)
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import atomic_write, check_writable

ROWS_AT_ONCE = 4096
KINDS = ("npy", "txt")


@extended(*TEXT_OPTIONS, *ENCODING_OPTIONS)
def encode(
    model: Annotated[str, typer.Argument(help=MODEL)],
    texts: Texts,
    vectors: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Embeddings that `evaluate --vectors` and `mine --vectors` share."),
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="LANG.npy, a row per text, and the texts, LANG.txt.")
    ] = None,
    **given: Any,
) -> None:
    """Encode texts: to files, or for other commands.

    Embeddings have length 1. A killed call with --vectors resumes.
    """
    from tqdm import tqdm

    from hf_xlsr.data.formats.quarantine import Quarantine
    from hf_xlsr.encoders.cache import CachedEncoder, VectorStore
    from hf_xlsr.encoders.encoding import embed
    from hf_xlsr.encoders.loading import encoder_facts

    if not (vectors or output):
        raise XlsrError("Give --vectors, --output, or both.")
    for name, place in (("--vectors", vectors), ("--output", output)):
        if place:
            check_writable(place, name, folder=True)
    quarantine = Quarantine()
    streams = read_texts(model, texts, given, quarantine)
    encoder, options = _encoder(model, given)
    if vectors:
        encoder = CachedEncoder(encoder, VectorStore(vectors, encoder_facts(encoder, model)))
    for language, stream in streams.items():
        rows, count = iter(stream), 0
        with tqdm(desc=language, unit=" texts", disable=not sys.stderr.isatty()) as bar, ExitStack() as stack:
            names = [f"{language}.{kind}" for kind in KINDS] if output else []
            files = [stack.enter_context(_writing(Path(str(output), name))) for name in names]
            while chunk := list(islice(rows, ROWS_AT_ONCE)):
                found = embed(encoder, chunk, language=language, **options)
                count += len(chunk)
                bar.update(len(chunk))
                if files:
                    matrix, lines = files
                    if not matrix.tell():
                        _write_header(matrix, (0, found.shape[1]))
                    matrix.write(found.astype("<f4").tobytes())
                    lines.write("".join(" ".join(line.split()) + "\n" for line in chunk).encode())
            if files:
                files[0].seek(0)
                _write_header(files[0], (count, found.shape[1]))
        print(f"{language}: {count:,} texts" + (f", {Path(output) / language}.npy" if output else ""))
    if faults := quarantine.report():
        print(faults, file=sys.stderr)


def _encoder(model: str, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    from hf_xlsr.encoders.loading import load_encoder

    options = encoder_options(given)
    return load_encoder(model, options.device, options.dtype), options.encoding


@contextmanager
def _writing(path: Path) -> Iterator[BinaryIO]:
    """A file that is there once it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial, partial.open("wb") as file:
        yield file


def _write_header(file: BinaryIO, shape: tuple[int, int]) -> None:
    """NumPy pads headers, so that one for more rows takes the same place."""
    from numpy.lib import format

    format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})


debias = typer.Typer(
    help="Remove language bias from sentence embeddings.", context_settings=HELP, add_completion=False
)


@debias.command(cls=Verb, context_settings=HELP)
@extended(*TEXT_OPTIONS, *ENCODING_OPTIONS)
def fit(
    model: Annotated[str, typer.Argument(help=MODEL)],
    output: Annotated[str, typer.Option(help="Folder for what is found.")],
    texts: Texts,
    components: Annotated[int, typer.Option(help="Principal components of each language to remove.")] = 1,
    method: Annotated[
        Literal["components", "mean", "whitening"], typer.Option(help="Remove components or the mean, or whiten.")
    ] = "components",
    **given: Any,
) -> None:
    """Find the language bias of a model."""
    from hf_xlsr.data.formats.quarantine import Quarantine
    from hf_xlsr.encoders.debias import check_method, fit_debias

    check_method(components, method)
    check_writable(output, "--output", folder=True)
    quarantine = Quarantine()
    rows = read_texts(model, texts, given, quarantine)
    encoder, options = _encoder(model, given)
    options |= {"show_progress_bar": sys.stderr.isatty(), "name": model}
    fitted = fit_debias(encoder, rows, components=components, method=method, **options)
    fitted.save(output)
    _print_report({"output": output, **fitted.facts(), "bad_lines": quarantine.report()})


@debias.command(cls=Verb, context_settings=HELP)
def apply(
    fitted: Annotated[str, typer.Argument(help="Folder that `fit` wrote.")],
    model: Annotated[str, typer.Option(help=MODEL)],
    output: Annotated[str, typer.Option(help="Folder for the model.")],
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale to length 1 afterwards.")] = False,
) -> None:
    """Remove the language bias from a model."""
    from hf_xlsr.encoders.debias import Debias
    from hf_xlsr.encoders.loading import load_encoder
    from hf_xlsr.export import debias_sentence_transformer

    removal, home = Debias.load(fitted), new_folder(output)
    debiased = debias_sentence_transformer(load_encoder(model, "cpu"), removal, normalize=normalize)
    debiased.save(str(home), create_model_card=False)
    _print_report({"output": output, **removal.facts()})


def _print_report(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    count = report["components"]
    others = {"mean": "the mean", "whitening": "mean and covariance"}
    what = others.get(report["method"], f"{count} component{'s' if count > 1 else ''}")
    table = Table(title=escape(f"{report['output']}: removes {what} of each language, width {report['dimension']}"))
    table.add_column("language")
    table.add_column("texts", justify="right")
    table.add_column("share of squared length removed", justify="right")
    for language, fitted in report["languages"].items():
        table.add_row(language, f"{fitted['texts']:,}", f"{100 * fitted['share']:.1f} %")
    Console().print(table)
    if report.get("bad_lines"):
        Console().print(escape(report["bad_lines"]))
