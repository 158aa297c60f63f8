"""The verb `encode`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from hf_xlsr.cli.options import ENCODING_OPTIONS, MODEL, TEXT_OPTIONS, Texts, extended, parse_routes, read_texts
from hf_xlsr.utils.errors import XlsrError

TEXTS_AT_ONCE = 4096
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
    from hf_xlsr.encoders.loading import check_choice, encoder_facts, load_encoder
    from hf_xlsr.utils.files import check_writable

    if not (vectors or output):
        raise XlsrError("Give --vectors, --output, or both.")
    for name, place in (("--vectors", vectors), ("--output", output)):
        if place:
            check_writable(place, name, folder=True)
    quarantine = Quarantine()
    streams = read_texts(model, texts, given, quarantine)
    check_choice(model, given["device"], given["dtype"])
    encoder = load_encoder(model, given["device"], given["dtype"])
    if vectors:
        encoder = CachedEncoder(encoder, VectorStore(vectors, encoder_facts(encoder, model)))
    options: dict[str, Any] = {
        "prompt": given["prompt"],
        "batch_size": given["batch_size"],
        "routes": parse_routes(given["routes"]) or None,
    }
    for language, stream in streams.items():
        rows, count = iter(stream), 0
        with tqdm(desc=language, unit=" texts", disable=not sys.stderr.isatty()) as bar, ExitStack() as stack:
            files = (
                [stack.enter_context(_writing(Path(output) / f"{language}.{kind}")) for kind in KINDS]
                if output
                else []
            )
            while chunk := list(islice(rows, TEXTS_AT_ONCE)):
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


@contextmanager
def _writing(path: Path) -> Iterator[BinaryIO]:
    """A file that is there once it is whole."""
    from hf_xlsr.utils.files import atomic_write

    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial, partial.open("wb") as file:
        yield file


def _write_header(file: BinaryIO, shape: tuple[int, int]) -> None:
    """NumPy pads headers, so that one for more rows takes the same place."""
    from numpy.lib import format

    format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
