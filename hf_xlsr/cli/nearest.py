"""The verb `nearest`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from hf_xlsr.cli.encode import EncodedTexts, encoded_chunks, loaded_encoder
from hf_xlsr.cli.options import read_texts
from hf_xlsr.utils.console import say, warn


@dataclass(kw_only=True)
class NearestOptions(EncodedTexts):
    """Options of `hf-xlsr nearest`."""

    query: Annotated[list[str], typer.Option(help="A sentence whose neighbours are listed.")]
    language: Annotated[
        str | None,
        typer.Option(help="Language of the queries, for prompts and routes; by default that of --texts first."),
    ] = None
    k: Annotated[int, typer.Option(min=1, help="Neighbours in each language.")] = 3


def nearest(options: NearestOptions) -> None:
    """List the nearest sentences of a query in each language, with their cosines.

    Sentences that equal the query are left out.

    Example: hf-xlsr nearest MODEL --query "Where is the station?" --texts en=en.txt de=de.txt
    """
    from hf_xlsr.data.formats.quarantine import Quarantine
    from hf_xlsr.encoders.encoding import embed

    quarantine = Quarantine()
    streams = read_texts(options.model, options.texts, options, quarantine)
    encoder, encoding = loaded_encoder(options)
    language = options.language or next(iter(streams))
    queries = embed(encoder, options.query, language=language, **encoding)

    lines: list[list[str]] = [[f"query: {query}"] for query in options.query]
    for name, stream in streams.items():
        chunks = list(encoded_chunks(encoder, name, stream, encoding))
        for query_lines, neighbours in zip(lines, _neighbours(options.query, queries, chunks, options.k), strict=True):
            query_lines += [f"{cosine:.3f}  {name}  {text}" for cosine, text in neighbours]
    for query_lines in lines:
        for line in query_lines:
            say(line)

    rejected = quarantine.report()
    if rejected:
        warn(rejected)


def _neighbours(
    queries: Sequence[str], query_vectors: Any, chunks: Sequence[tuple[Sequence[str], Any]], k: int
) -> Iterator[list[tuple[float, str]]]:
    """The `k` nearest different texts of each query, with their cosines, best first."""
    import numpy as np

    from hf_xlsr.mining.search.neighbours import nearest_neighbours

    # A text that is there several times is listed once.
    rows: dict[str, Any] = {}
    for texts, vectors in chunks:
        for text, vector in zip(texts, vectors, strict=True):
            rows.setdefault(text, vector)
    names = list(rows)
    cosines, indices = nearest_neighbours(query_vectors, np.stack(list(rows.values())), k + 1)
    for query, query_cosines, query_indices in zip(queries, cosines.tolist(), indices.tolist(), strict=True):
        pairs = [(cosine, names[index]) for cosine, index in zip(query_cosines, query_indices, strict=True)]
        yield [(cosine, text) for cosine, text in pairs if text != query][:k]
