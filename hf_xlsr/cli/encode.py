"""The verb `encode`."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_xlsr.cli.options import MODEL, extended, parse_routes, shared
from hf_xlsr.cli.texts import read_texts
from hf_xlsr.utils.errors import XlsrError

TEXTS_AT_ONCE = 4096


@extended(
    *shared(
        *("columns", "languages", "where", "config", "split", "limit"),
        *("prompt", "routes", "batch_size", "device", "dtype"),
        split=None,
    )
)
def encode(
    model: Annotated[str, typer.Argument(help=MODEL)],
    texts: Annotated[
        list[str],
        typer.Option(metavar="LANG=FILE", help="Texts of each language, or FILE with {lang} and --languages."),
    ],
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
    import numpy as np
    from tqdm import tqdm

    from hf_xlsr.data.formats.quarantine import Quarantine
    from hf_xlsr.encoders.cache import CachedEncoder
    from hf_xlsr.encoders.encoding import embed
    from hf_xlsr.encoders.loading import check_choice, encoder_facts, load_encoder
    from hf_xlsr.encoders.vector_store import VectorStore
    from hf_xlsr.utils.files import atomic_write, check_writable

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
        rows, lines, parts = iter(stream), [], []
        with tqdm(desc=language, unit=" texts", disable=not sys.stderr.isatty()) as bar:
            while chunk := list(islice(rows, TEXTS_AT_ONCE)):
                found = embed(encoder, chunk, language=language, **options)
                bar.update(len(chunk))
                if output:
                    lines += chunk
                    parts.append(found.astype(np.float32))
        if output:
            Path(output).mkdir(parents=True, exist_ok=True)
            with atomic_write(Path(output) / f"{language}.npy") as partial, partial.open("wb") as file:
                np.save(file, np.concatenate(parts))
            with atomic_write(Path(output) / f"{language}.txt") as partial:
                partial.write_text("".join(" ".join(line.split()) + "\n" for line in lines), "utf-8")
        print(f"{language}: {bar.n:,} texts" + (f", {Path(output) / language}.npy" if output else ""))
    if faults := quarantine.report():
        print(faults, file=sys.stderr)
