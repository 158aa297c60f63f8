"""Lists of queries with their nearest neighbours, for reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed
from hf_xlsr.mining.search.neighbours import nearest_neighbours
from hf_xlsr.utils.errors import require_positive
from hf_xlsr.utils.markdown_text import escape_markdown, markdown_table


@dataclass(frozen=True)
class Neighbour:
    """One sentence near a query: its rank from 1, cosine, and whether it is the query's translation."""

    rank: int
    text: str
    similarity: float
    is_gold: bool = False


@dataclass(frozen=True)
class NeighbourList:
    """A query and its neighbours, nearest first; `missed` is its translation, with its true rank, if not among them."""

    query: str
    neighbours: tuple[Neighbour, ...]
    missed: Neighbour | None = None


def nearest_neighbour_lists(
    encoder: Encoder,
    queries: Sequence[str],
    candidates: Sequence[str],
    *,
    k: int = 5,
    golds: Sequence[str] | None = None,
    languages: tuple[str, str] | None = None,
    **encoding: Unpack[EncodingOptions],
) -> list[NeighbourList]:
    """The `k` nearest of the candidates for each query, by cosine, with the queries' translations `golds` marked.

    The candidates are the distinct sentences of `candidates` and `golds`, as in protocol `xsr`. Ties go to the
    candidate seen first.
    """
    require_positive("k", k)
    position: dict[str, int] = {}
    for text in (*candidates, *(golds or ())):
        position.setdefault(text, len(position))
    texts = list(position)
    sides = zip((queries, texts), languages or (None, None), strict=True)
    query_vectors, vectors = (embed(encoder, side, language=language, **encoding) for side, language in sides)
    similarities, found = nearest_neighbours(query_vectors, vectors, k)
    lists = []
    wanted: Sequence[str | None] = golds or [None] * len(queries)
    for number, (query, gold) in enumerate(zip(queries, wanted, strict=True)):
        neighbours = tuple(
            Neighbour(rank, texts[index], float(similarity), texts[index] == gold)
            for rank, (index, similarity) in enumerate(zip(found[number], similarities[number], strict=True), start=1)
        )
        missed = None
        if gold is not None and not any(neighbour.is_gold for neighbour in neighbours):
            to_all = vectors @ query_vectors[number]
            own = to_all[position[gold]]
            # Of candidates that are almost tied the search, in float64, may have put another first.
            missed = Neighbour(max(int((to_all > own).sum()), k) + 1, gold, float(own), is_gold=True)
        lists.append(NeighbourList(query, neighbours, missed))
    return lists


def neighbours_markdown(lists: Sequence[NeighbourList]) -> str:
    """A small table for each query; a translation that was not found stands last, with the rank it has."""
    lines = []
    for entry in lists:
        rows = []
        for neighbour in (*entry.neighbours, *([entry.missed] if entry.missed else [])):
            text = escape_markdown(neighbour.text)
            marked = f"**{text}** ✓" if neighbour.is_gold else text
            rows.append([f"{neighbour.rank:,}", f"{neighbour.similarity:.3f}", marked])
        lines += [f"Query: {escape_markdown(entry.query)}", ""]
        lines += [*markdown_table(["rank", "cosine", "sentence"], rows, numbers_from=3), ""]
    note = ["The translation is bold and ticked.", ""] if any("✓" in line for line in lines) else []
    return "\n".join(note + lines)
