from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from result_helpers import results as of_keys

from hf_xlsr.evaluation.markdown_report import Neighbour, NeighbourList, markdown_report, metric_tables
from hf_xlsr.evaluation.results import load_results, save_results
from hf_xlsr.utils.hashing import data_hash
from hf_xlsr.utils.markdown_text import escape_markdown, markdown_table

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


def table(metrics: dict[str, dict[str, float]], heading: str) -> list[list[str]]:
    lines = metric_tables({label: of_keys(values) for label, values in metrics.items()})[heading]
    (found,) = read("\n".join(lines))[""] if lines else [[]]
    assert len({len(row) for row in found}) == 1
    return found


def tatoeba(language: str, accuracy: float, pairs: int = 1000) -> dict[str, float]:
    prefix = f"tico19-tatoeba/en-{language}/test"
    return {f"{prefix}/accuracy": accuracy, f"{prefix}/pairs": pairs}


@settings(max_examples=150, deadline=None)
@given(text=st.text(st.sampled_from("ab1 |\\`*_{}[]<>#~$&;!()+-.:/\"'é你"), max_size=20))
def test_text_in_a_cell(text: str):
    lines = markdown_table(["head", escape_markdown(text)], [[escape_markdown(text), "x"]])
    (found,) = read("\n".join(lines))[""]
    seen = " ".join(text.split())
    assert found == [["head", seen], [seen, "x"]]


def test_best_encoder_is_bold():
    metrics = {"a": tatoeba("de", 0.9) | tatoeba("fr", 0.8), "b": tatoeba("de", 0.85) | tatoeba("fr", 0.80001)}
    assert table(metrics, "tico19-tatoeba, test") == [
        ["", "a/accuracy %", "b/accuracy %", "pairs"],
        ["en-de", "**90.0**", "85.0", "1000"],
        ["en-fr", "**80.0**", "**80.0**", "1000"],  # equal as shown
    ]


def test_lowest_error_is_bold():
    prefix = "a-bucc-k4-ratio/de-en/test"
    metrics = {
        label: {
            f"{prefix}/error": error,
            f"{prefix}/f1": f1,
            f"{prefix}/threshold": 1.08 + f1,
            f"{prefix}/pairs": count,
        }
        for label, error, f1, count in (("x", 0.09, 0.5, 7), ("y", 0.1, 0.25, 8), ("z", 0.1, 0.5, 9))
    }
    head, row = table(metrics, "a-bucc-k4-ratio, test")
    assert row == [
        *["de-en", "**9.0**", "10.0", "10.0", "**50.0**", "25.0", "**50.0**"],
        *["1.5800", "1.3300", "1.5800", "7", "8", "9"],
    ]
    assert head[1] == "x/error %" and head[4] == "x/f1 ×100" and head[7] == "x/threshold" and head[10] == "x/pairs"


def test_missing_values_are_blank():
    metrics = {"a": tatoeba("de", 0.9) | tatoeba("fr", 0.8), "b": tatoeba("fr", 0.7), "c": {}}
    _, german, french = table(metrics, "tico19-tatoeba, test")
    assert german == ["en-de", "90.0", "", "1000"]
    assert french == ["en-fr", "**80.0**", "70.0", "1000"]


def test_tasks_share_a_table():
    sts = {"STS12": 0.5, "STS12.MSRpar": 0.25, "SICK-R": 0.75}
    metrics = {f"{task}-sts/en/test/spearman_all": value for task, value in sts.items()}
    average = {"sts-average-of-2/en/test/spearman_all": 0.625}
    assert table({"a": average | metrics}, "sts, test") == [
        ["", "spearman all ×100"],
        ["STS12", "50.0"],
        ["STS12.MSRpar", "25.0"],
        ["SICK-R", "75.0"],
        ["average of 2", "62.5"],
    ]
    # A second language is named; a task in both gets a table of its own, for its rows are languages.
    assert table({"a": metrics | {"STS17-sts/en-de/test/spearman_all": 1.0}}, "sts, test")[-1][0] == "STS17 en-de"
    assert set(metric_tables({"a": of_keys(metrics | {"STS12-sts/de/test/spearman_all": 1.0})})) == {
        f"{task}-sts, test" for task in sts
    }


def test_many_metrics():
    measures = ("cosine", "dot", "euclidean", "manhattan", "max", "other")
    metrics: dict[str, dict[str, float]] = {}
    for number, label in enumerate(("a", "b", "c")):
        metrics[label] = {f"p-pair-classification/de/dev/{name}_ap": 0.5 + number / 10 for name in measures}
        metrics[label]["p-pair-classification/en/dev/max_ap"] = 0.25
    found = table(metrics, "p-pair-classification, dev")
    assert found[0] == ["metric", "", "a", "b", "c"]
    assert found[1] == ["cosine ap ×100", "de", "50.0", "60.0", "**70.0**"]
    assert found[5:7] == [
        ["max ap ×100", "de", "50.0", "60.0", "**70.0**"],
        ["", "en", "**25.0**", "**25.0**", "**25.0**"],
    ]
    assert len(found) == 8


def test_report(tmp_path: Path):
    results = {}
    for label, accuracy, seen in (("e5|small", 0.9, "same"), ("ours", 0.7, "other")):
        save_results(
            tmp_path / f"{label}.json",
            of_keys(tatoeba("de", accuracy) | tatoeba("fr", 0.5)),
            settings={"seed": 1, "prompt": "query: |", "languages": ["de", "fr"], "recipe": {"a": "```", "b": [1]}},
            data_hashes={"pairs": data_hash([seen]), "pool": data_hash(["p"])},
        )
        results[label] = load_results(tmp_path / f"{label}.json")
    picture = tmp_path / "report" / "bars & more (1).png"
    picture.parent.mkdir()
    picture.write_bytes(b"png")
    neighbours = [NeighbourList("q|", (Neighbour(1, "a", 0.5),))]
    path = markdown_report(
        tmp_path / "report",
        results,
        title="Tatoeba *v1*",
        plots={"By language": picture},
        neighbours={"en to de": neighbours},
    )
    assert path == tmp_path / "report" / "report.md"
    text = path.read_text(encoding="utf-8")
    sections = read(text)
    (results_found,) = sections["tico19-tatoeba, test"]
    assert results_found[0][1:3] == ["e5|small/accuracy %", "ours/accuracy %"]
    assert results_found[-1] == ["mean of 2", "**70.0**", "60.0", ""]
    assert [sections[heading] for heading in sections if heading == "en to de"] == [
        [[["rank", "cosine", "sentence"], ["1", "0.500", "a"]]]
    ]
    how, hashes, versions = sections["How it was measured"]
    assert how[0] == ["setting", "e5|small", "ours"]
    assert ["prompt", "query: |", "query: |"] in how and ["languages", "de, fr", "de, fr"] in how
    assert how[1][0] == "created" and "recipe" not in [row[0] for row in how]
    assert hashes[1] == ["pairs", data_hash(["same"])[:16], data_hash(["other"])[:16]]
    assert "not measured on the same data:** pairs differs" in text
    assert versions[0][0] == "version" and "numpy" in [row[0] for row in versions]
    html = MARKDOWN.render(text)
    assert html.startswith("<h1>Tatoeba *v1*</h1>")
    assert '<img src="bars%20%26%20more%20%281%29.png" alt="By language" />' in html
    assert html.count("<details>") == html.count("</details>") == html.count("<code") == 2


def test_links_of_plots_are_relative(tmp_path: Path):
    (tmp_path / "plots").mkdir()
    picture = tmp_path / "plots" / "a.png"
    picture.write_bytes(b"png")
    path = markdown_report(tmp_path / "reports" / "new", {"a": of_keys(tatoeba("de", 0.5))}, plots={"A": picture})
    assert "![A](../../plots/a.png)" in path.read_text(encoding="utf-8")
