from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt
from sentence_transformers.util import semantic_search

from hf_xlsr.evaluation.markdown_report import (
    Neighbour,
    NeighbourList,
    nearest_neighbour_lists,
    neighbours_markdown,
)


class Random:
    """A vector for each text, drawn by the text; it keeps what it was asked."""

    routes = ("en", "de")

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, list[str]]] = []

    def encode(self, texts: list[str], task: str | None = None, **kwargs: Any) -> np.ndarray:
        self.asked.append((task, texts))
        return np.stack([vector(text) for text in texts])


def vector(text: str) -> np.ndarray:
    return np.random.default_rng(list(text.encode())).normal(size=8)


def unit(texts: list[str]) -> np.ndarray:
    vectors = np.stack([vector(text) for text in texts])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


QUERIES = [f"question {i}" for i in range(20)]
CANDIDATES = [f"answer {i}" for i in range(50)]


def ask(**options: Any) -> list[NeighbourList]:
    return nearest_neighbour_lists(Random(), QUERIES, CANDIDATES, languages=("de", "en"), **options)


def test_equals_sentence_transformers():
    lists = ask(k=4)
    expected = semantic_search(unit(QUERIES).astype(np.float32), unit(CANDIDATES).astype(np.float32), top_k=4)
    assert [entry.query for entry in lists] == QUERIES
    for entry, hits in zip(lists, expected, strict=True):
        assert [neighbour.text for neighbour in entry.neighbours] == [CANDIDATES[hit["corpus_id"]] for hit in hits]
        assert [neighbour.rank for neighbour in entry.neighbours] == [1, 2, 3, 4]
        cosines = [neighbour.similarity for neighbour in entry.neighbours]
        np.testing.assert_allclose(cosines, [hit["score"] for hit in hits], atol=1e-6)
        assert entry.missed is None and not any(neighbour.is_gold for neighbour in entry.neighbours)


def test_golds():
    golds = CANDIDATES[5:25]
    lists = ask(k=10, golds=golds)
    cosines = unit(QUERIES) @ unit(CANDIDATES).T
    missed = 0
    for row, entry in enumerate(lists):
        gold = 5 + row
        rank = 1 + int((cosines[row] > cosines[row, gold]).sum())
        marked = [neighbour for neighbour in entry.neighbours if neighbour.is_gold]
        if rank <= 10:
            assert [neighbour.rank for neighbour in marked] == [rank] and entry.missed is None
            assert marked[0].text == golds[row]
        else:
            assert not marked and entry.missed is not None
            assert (entry.missed.rank, entry.missed.text, entry.missed.is_gold) == (rank, golds[row], True)
            assert entry.missed.similarity == pytest.approx(cosines[row, gold], abs=1e-6)
            missed += 1
    assert 0 < missed < len(lists)


LISTS = [
    NeighbourList("a|b [red]", (Neighbour(1, "*x* [/y]", 0.98765, True), Neighbour(2, "line\nbreak", 0.5))),
    NeighbourList("second", (Neighbour(1, "wrong", 0.25),), missed=Neighbour(1234, "right", -0.125, True)),
]


def test_markdown():
    html = MarkdownIt("commonmark").enable("table").render(neighbours_markdown(LISTS))
    assert html.count("<table>") == 2
    assert "<p>Query: a|b [red]</p>" in html
    assert "<td><strong>*x* [/y]</strong> ✓</td>" in html
    assert "<td>line break</td>" in html
    assert "<tr>\n<td>1,234</td>\n<td>-0.125</td>\n<td><strong>right</strong> ✓</td>" in html
    assert "bold and ticked" in html
