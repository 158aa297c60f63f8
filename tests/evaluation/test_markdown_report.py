from __future__ import annotations

import numpy as np
import pytest
from bitext_helpers import cosines, noisy
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from sentence_transformers.util import semantic_search

from hf_xlsr.evaluation.markdown_report import neighbours_markdown
from hf_xlsr.utils.markdown import escape_markdown, markdown_table

MARKDOWN = MarkdownIt("commonmark").enable("table")


def inline(token: Token) -> str:
    """What a reader sees; bold as **."""
    seen = {"strong_open": "**", "strong_close": "**"}
    return "".join(seen.get(child.type, child.content) for child in token.children or [])


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table, as a parser sees them."""
    found: list[list[list[str]]] = []
    previous = ""
    for token in MARKDOWN.parse(text):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and previous in ("th_open", "td_open"):
            found[-1][-1].append(inline(token))
        previous = token.type
    return found


@settings(max_examples=150, deadline=None)
@given(text=st.text(st.sampled_from("ab1 |\\`*_{}[]<>#~$&;!()+-.:/\"'é你"), max_size=20))
def test_text_in_a_cell(text: str):
    lines = markdown_table(["head", escape_markdown(text)], [[escape_markdown(text), "x"]])
    seen = " ".join(text.split())
    assert tables("\n".join(lines)) == [[["head", seen], [seen, "x"]]]


def test_nearest_neighbours_equal_sentence_transformers():
    encoder, queries, candidates = noisy(50, noise=2.0)
    text = neighbours_markdown(encoder, queries, candidates, candidates, languages=("de", "en"), k=4)
    vectors = [encoder.encode(side).astype(np.float32) for side in (queries, candidates)]
    expected = semantic_search(*vectors, top_k=4)
    similarities = cosines(encoder, queries, candidates)
    missed = 0
    for row, (table, hits) in enumerate(zip(tables(text), expected, strict=True)):
        found = [(int(rank.replace(",", "")), float(cosine), shown) for rank, cosine, shown in table[1:]]
        assert [shown.strip("*✓ ") for *_, shown in found[:4]] == [candidates[hit["corpus_id"]] for hit in hits]
        assert [cosine for _, cosine, _ in found[:4]] == pytest.approx([hit["score"] for hit in hits], abs=6e-4)
        (gold,) = [one for one in found if one[2].endswith("✓")]
        assert gold[0] == 1 + (similarities[row] > similarities[row, row]).sum()
        assert gold[1] == pytest.approx(similarities[row, row], abs=6e-4) and gold[2] == f"**{candidates[row]}** ✓"
        missed += len(found) > 4
    assert 0 < missed < len(expected)
