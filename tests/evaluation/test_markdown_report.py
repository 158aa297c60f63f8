from __future__ import annotations

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

from hf_xlsr.evaluation.markdown_report import (
    Neighbour,
    metric_tables,
    nearest_neighbour_lists,
    neighbours_markdown,
    provenance,
)
from hf_xlsr.evaluation.results import load_results, save_results
from hf_xlsr.utils.hashing import data_hash
from hf_xlsr.utils.markdown import escape_markdown, markdown_table

MARKDOWN = MarkdownIt("commonmark").enable("table")


def inline(token: Token) -> str:
    """What a reader sees; bold as ** and a break as a slash."""
    seen = {"strong_open": "**", "strong_close": "**", "html_inline": "/"}
    return "".join(seen.get(child.type, child.content) for child in token.children or [])


def read(text: str) -> dict[str, Any]:
    """Headings, and the tables below each, as a parser sees them."""
    sections: dict[str, Any] = {}
    heading, previous = "", ""
    for token in MARKDOWN.parse(text):
        if token.type == "inline" and previous == "heading_open":
            heading = inline(token)
        elif token.type == "table_open":
            sections.setdefault(heading, []).append([])
        elif token.type == "tr_open":
            sections[heading][-1].append([])
        elif token.type == "inline" and previous in ("th_open", "td_open"):
            sections[heading][-1][-1].append(inline(token))
        previous = token.type
    return sections


def table(metrics: dict[str, float], heading: str) -> list[list[str]]:
    (found,) = read("\n".join(metric_tables(of_keys(metrics), "e5|small")[heading]))[""]
    assert len({len(row) for row in found}) == 1
    return found


@settings(max_examples=150, deadline=None)
@given(text=st.text(st.sampled_from("ab1 |\\`*_{}[]<>#~$&;!()+-.:/\"'é你"), max_size=20))
def test_text_in_a_cell(text: str):
    lines = markdown_table(["head", escape_markdown(text)], [[escape_markdown(text), "x"]])
    (found,) = read("\n".join(lines))[""]
    seen = " ".join(text.split())
    assert found == [["head", seen], [seen, "x"]]


def test_units_and_missing_values():
    metrics = {
        "a-bucc-k4-ratio/de-en/test/error": 0.09,
        "a-bucc-k4-ratio/de-en/test/f1": 0.5,
        "a-bucc-k4-ratio/de-en/test/threshold": 1.58,
        "a-bucc-k4-ratio/de-en/test/pairs": 7,
        "a-bucc-k4-ratio/mean-of-2/test/f1": 0.25,
        "a-bucc-k4-ratio/fr-en/test/f1": 0.25,
    }
    assert table(metrics, "a-bucc-k4-ratio, test") == [
        ["", "error %", "f1 ×100", "threshold", "pairs"],
        ["de-en", "9.0", "50.0", "1.5800", "7"],
        ["fr-en", "", "25.0", "", ""],
        ["mean of 2", "", "25.0", "", ""],
    ]


def test_tasks_share_a_table():
    sts = {"STS12": 0.5, "STS12.MSRpar": 0.25, "SICK-R": 0.75}
    metrics = {f"{task}-sts/en/test/spearman_all": value for task, value in sts.items()}
    average = {"sts-average-of-2/en/test/spearman_all": 0.625}
    assert table(average | metrics, "sts, test") == [
        ["", "spearman all ×100"],
        ["STS12", "50.0"],
        ["STS12.MSRpar", "25.0"],
        ["SICK-R", "75.0"],
        ["average of 2", "62.5"],
    ]
    # A second language is named; a task in both gets a table of its own, for its rows are languages.
    assert table(metrics | {"STS17-sts/en-de/test/spearman_all": 1.0}, "sts, test")[-1][0] == "STS17 en-de"
    german = {"STS12-sts/de/test/spearman_all": 1.0}
    assert set(metric_tables(of_keys(metrics | german), "e5")) == {f"{task}-sts, test" for task in sts}


def test_many_metrics():
    metrics = {f"p-pair-classification/de/dev/m{number}_ap": number / 100 for number in range(20)}
    metrics["p-pair-classification/en/dev/m1_ap"] = 0.25
    found = table(metrics, "p-pair-classification, dev")
    assert found[:4] == [
        ["metric", "", "e5|small"],
        ["m0 ap ×100", "de", "0.0"],
        ["m1 ap ×100", "de", "1.0"],
        ["", "en", "25.0"],
    ]
    assert len(found) == 22


def test_how_it_was_measured(tmp_path: Path):
    settings = {"seed": 1, "prompt": "query: |", "languages": ["de", "fr"], "recipe": {"a": "```", "b": [1]}}
    save_results(tmp_path / "r.json", of_keys({}), settings=settings, data_hashes={"pairs": data_hash(["same"])})
    lines = provenance(load_results(tmp_path / "r.json"), "e5|small")
    how, hashes, versions = read("\n".join(lines))["How it was measured"]
    assert how[0] == ["setting", "e5|small"] and how[1][0] == "created"
    assert how[2:] == [["seed", "1"], ["prompt", "query: |"], ["languages", "de, fr"]]
    assert hashes[1:] == [["pairs", data_hash(["same"])[:16]]]
    assert versions[0][0] == "version" and "numpy" in [row[0] for row in versions]
    html = MARKDOWN.render("\n".join(lines))
    assert html.count("<details>") == html.count("</details>") == html.count("<code") == 1


def test_nearest_neighbours_equal_sentence_transformers():
    encoder, queries, candidates = noisy(50, noise=2.0)
    lists = nearest_neighbour_lists(encoder, queries, candidates, candidates, languages=("de", "en"), k=4)
    vectors = [encoder.encode(side).astype(np.float32) for side in (queries, candidates)]
    expected = semantic_search(*vectors, top_k=4)
    similarities = cosines(encoder, queries, candidates)
    missed = 0
    for row, (neighbours, hits) in enumerate(zip(lists, expected, strict=True)):
        assert [neighbour.text for neighbour in neighbours[:4]] == [candidates[hit["corpus_id"]] for hit in hits]
        cosines_found = [neighbour.similarity for neighbour in neighbours[:4]]
        np.testing.assert_allclose(cosines_found, [hit["score"] for hit in hits], atol=1e-6)
        (gold,) = [neighbour for neighbour in neighbours if neighbour.is_gold]
        assert (gold.text, gold.rank) == (candidates[row], 1 + (similarities[row] > similarities[row, row]).sum())
        assert gold.similarity == pytest.approx(similarities[row, row], abs=1e-6)
        missed += len(neighbours) > 4
    assert 0 < missed < len(lists)


def test_neighbours_in_markdown():
    lists = [
        ("a|b [red]", [Neighbour(1, "*x* [/y]", 0.98765, True), Neighbour(2, "line\nbreak", 0.5)]),
        ("second", [Neighbour(1, "wrong", 0.25), Neighbour(1234, "right", -0.125, True)]),
    ]
    html = MARKDOWN.render(neighbours_markdown(lists))
    assert html.count("<table>") == 2
    assert "<p>Query: a|b [red]</p>" in html
    assert "<td><strong>*x* [/y]</strong> ✓</td>" in html
    assert "<td>line break</td>" in html
    assert "<tr>\n<td>1,234</td>\n<td>-0.125</td>\n<td><strong>right</strong> ✓</td>" in html
    assert "bold and ticked" in html
