from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitext_helpers import cosines, noisy
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from result_helpers import results as of_keys
from sentence_transformers.util import semantic_search

from hf_xlsr.evaluation.inputs import Inputs
from hf_xlsr.evaluation.markdown_report import neighbours_markdown, write_report
from hf_xlsr.evaluation.results import load_results, save_results
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


def test_results_and_settings(tmp_path: Path):
    metrics = {
        "a|b-bucc-k4-ratio/de-en/test/error": 0.09,
        "a|b-bucc-k4-ratio/de-en/test/f1": 0.5,
        "a|b-bucc-k4-ratio/de-en/test/threshold": 1.58,
        "a|b-bucc-k4-ratio/de-en/test/pairs": 7,
    }
    settings = {"prompt": "query: |", "recipe": {"a": "```\n<b>", "b": [1]}}
    save_results(tmp_path / "r.json", of_keys(metrics), settings=settings, data_hashes={"pairs": "0" * 64})
    encoder: Any = None  # without translation pairs nothing is encoded
    write_report(str(tmp_path / "new"), "e5|small", load_results(tmp_path / "r.json"), Inputs("a", "test"), encoder)
    text = (tmp_path / "new/report.md").read_text("utf-8")
    name = ["a|b-bucc-k4-ratio", "de-en", "test"]
    assert tables(text)[0][1:] == [
        [*name, "error", "9.0 %", ""],
        [*name, "f1 ×100", "50.0", ""],
        [*name, "threshold", "1.5800", ""],
        [*name, "pairs", "7", ""],
    ]
    (code,) = [token.content for token in MARKDOWN.parse(text) if token.type == "code_block"]
    facts = json.loads(code)
    assert facts["settings"] == settings and facts["data_sha256"] == {"pairs": "0" * 64}
    assert "numpy" in facts["versions"]


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
