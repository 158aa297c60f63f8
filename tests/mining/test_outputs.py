from __future__ import annotations

import tempfile
import tracemalloc
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.mining import outputs
from hf_xlsr.mining.outputs import SCORE_COLUMNS, WRITERS, check_place, output_format, write_pairs
from hf_xlsr.utils.errors import XlsrError

HARD = [
    'a "quoted" & <b>',
    " two  spaces ",
    "= + , ; '",
    "日本語\u2028\u00a0",
    "]]> --> &amp;",
    "\U0001f600",
    "\\t \\n",
]
# Not NUL, which no reader of ours takes, and not white space alone, which is no sentence.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
TEXT = TEXT.filter(lambda text: bool(text.strip()))


def row(score: float, source: str, target: str, line: int = 1) -> dict[str, Any]:
    return {"score": score, "source": source, "target": target, "source_line": line, "target_line": line + 1}


def read(path: Path) -> list[dict[str, Any]]:
    return list(read_rows(path, languages=("en", "fr")))


@pytest.mark.parametrize("format", list(WRITERS))
def test_our_reader_reads_it_back(format: str, tmp_path: Path):
    rows = [row(1.5 - number / 100, text, text[::-1]) for number, text in enumerate(HARD)]
    file = tmp_path / "sub" / f"pairs.{format}"
    assert write_pairs(file, iter(rows), languages=("en", "fr")) == len(rows)
    read_back = read(file)
    assert [(pair["source"], pair["target"]) for pair in read_back] == [(text, text[::-1]) for text in HARD]
    if format != "tmx":
        assert [float(pair["score"]) for pair in read_back] == pytest.approx([pair["score"] for pair in rows])
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.tuples(TEXT, TEXT), max_size=5), format=st.sampled_from(["jsonl", "parquet"]))
def test_any_text_survives_json_and_parquet(texts: list[tuple[str, str]], format: str):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"pairs.{format}"
        write_pairs(file, [row(1.25, *pair) for pair in texts])
        assert [(pair["source"], pair["target"]) for pair in (read(file) if texts else [])] == texts


@settings(max_examples=60, deadline=None)
@given(pair=st.tuples(TEXT, TEXT))
def test_any_text_makes_a_valid_tmx_and_one_line_of_tsv(pair: tuple[str, str]):
    with tempfile.TemporaryDirectory() as folder:
        for format in ("tmx", "tsv"):
            file = Path(folder) / f"pairs.{format}"
            write_pairs(file, [row(1.0, *pair), row(0.5, "after", "après")], languages=("en", "fr"))
            read_back = read(file)
            assert read_back[-1]["source"] == "after"
            if len(read_back) == 2:  # a text of control characters alone is blank once they are spaces
                assert len(read_back[0]["source"]) <= len(pair[0])


def test_columns(tmp_path: Path):
    rows = [row(1.0625, "good day", "bonjour", 3)]
    write_pairs(tmp_path / "a.tsv", rows)
    assert (tmp_path / "a.tsv").read_text() == "score\tsource\ttarget\n1.062500\tgood day\tbonjour\n"
    write_pairs(tmp_path / "a.jsonl", rows)
    assert (tmp_path / "a.jsonl").read_text() == (
        '{"score": 1.0625, "source": "good day", "target": "bonjour", "source_line": 3, "target_line": 4}\n'
    )
    write_pairs(tmp_path / "a.parquet", rows)
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == rows
    scored = [{"score": 1.5, "cosine": 0.25, "source": "good day", "target": "bonjour"}]
    write_pairs(tmp_path / "b.tsv", scored, columns=SCORE_COLUMNS)
    assert (tmp_path / "b.tsv").read_text().splitlines()[0] == "score\tcosine\tsource\ttarget"
    write_pairs(tmp_path / "b.parquet", scored, columns=SCORE_COLUMNS)
    assert pq.read_table(tmp_path / "b.parquet").to_pylist() == scored


def test_tmx_notes_languages_and_scores(tmp_path: Path):
    write_pairs(tmp_path / "a.tmx", [row(1.0625, "a\rb & <c>", "d\x0be")], languages=("en", "pt-BR"))
    root = ElementTree.parse(tmp_path / "a.tmx").getroot()
    assert (root.tag, root.get("version")) == ("tmx", "1.4")
    header = root.find("header")
    required = "creationtool creationtoolversion segtype o-tmf adminlang srclang datatype".split()
    assert header is not None and sorted(header.attrib) == sorted(required) and header.get("srclang") == "en"
    (unit,) = root.findall("body/tu")
    assert [(prop.get("type"), prop.text) for prop in unit.findall("prop")] == [("score", "1.062500")]
    language = "{http://www.w3.org/XML/1998/namespace}lang"
    assert [(tuv.get(language), tuv.findtext("seg")) for tuv in unit.findall("tuv")] == [
        ("en", "a\rb & <c>"),
        ("pt-BR", "d e"),
    ]


def test_what_a_format_cannot_hold_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    rows = [row(1.0, "a\tb", "c"), row(0.9, "a\nb", "c"), row(0.8, "plain", "plain")]
    write_pairs(tmp_path / "a.tsv", rows)
    assert [pair["source"] for pair in read(tmp_path / "a.tsv")] == ["a b", "a b", "plain"]
    assert "became spaces in 2 pairs; jsonl and parquet keep them." in caplog.text
    caplog.clear()
    write_pairs(tmp_path / "a.jsonl", rows)
    assert not caplog.messages


@pytest.mark.parametrize("format", list(WRITERS))
def test_no_pairs_are_a_whole_file(format: str, tmp_path: Path):
    file = tmp_path / f"pairs.{format}"
    assert write_pairs(file, [], languages=("en", "fr")) == 0
    assert read(file) == []


@pytest.mark.parametrize("format", list(WRITERS))
def test_a_failure_leaves_the_old_file(format: str, tmp_path: Path):
    file = tmp_path / f"pairs.{format}"
    write_pairs(file, [row(1.0, "old", "vieux")], languages=("en", "fr"))

    def fails() -> Iterator[dict[str, Any]]:
        yield row(1.0, "new", "neuf")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_pairs(file, fails(), languages=("en", "fr"))
    assert [pair["source"] for pair in read(file)] == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("format", list(WRITERS))
def test_rows_are_not_held(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outputs, "ROWS_AT_ONCE", 100)
    tracemalloc.start()
    try:
        rows = (row(1.0, "x" * 9000, str(number)) for number in range(1000))
        write_pairs(tmp_path / f"pairs.{format}", rows, languages=("en", "fr"))
        assert tracemalloc.get_traced_memory()[1] < 5_000_000  # of 9 MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        (
            "pairs.txt",
            {},
            "output pairs.txt has none of the suffixes .tsv, .jsonl, .parquet, .tmx; choose one, or give",
        ),
        ("pairs", {}, "output pairs has none of the suffixes"),
        ("pairs.tsv", {"format": "tsvv"}, "format is 'tsvv'; did you mean 'tsv'?"),
        ("pairs.tmx", {}, "output pairs.tmx is TMX, which notes two languages; give them as --languages en,fr."),
        ("pairs.tmx", {"languages": ["en", "en"]}, "is TMX, which notes two languages"),
    ],
)
def test_mistakes_are_one_sentence(path: str, options: dict[str, Any], message: str):
    with pytest.raises(XlsrError, match=message):
        write_pairs(path, [], **options)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("folder.tsv", "folder.tsv cannot be written .Is a directory.; choose another place."),
        ("file/p.tsv", "file/p.tsv cannot be written .Not a directory: .*/file.; choose another place."),
        ("file/sub/p.tsv", "file/sub/p.tsv cannot be written .Not a directory"),
        ("/proc/none/p.tsv", "/proc/none/p.tsv cannot be written .No such file or directory: /proc.; choose another"),
        ("/sys/p.tsv", "/sys/p.tsv cannot be written"),
        ("x" * 300 + ".tsv", "cannot be written .File name too long"),
    ],
)
def test_an_impossible_place_is_told_before_and_after(place: str, message: str, tmp_path: Path):
    (tmp_path / "folder.tsv").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(XlsrError, match=message):
        check_place(tmp_path / place)
    with pytest.raises(XlsrError, match="cannot be written"):
        write_pairs(tmp_path / place, [row(1.0, "a", "b")])


def test_a_place_that_is_possible_stays_as_it_was(tmp_path: Path):
    (tmp_path / "p.tsv").write_text("old")
    check_place(tmp_path / "p.tsv")
    check_place(tmp_path / "new" / "sub" / "p.tsv")
    assert [path.name for path in tmp_path.iterdir()] == ["p.tsv"]
    assert (tmp_path / "p.tsv").read_text() == "old"


def test_a_format_overrules_the_suffix(tmp_path: Path):
    assert output_format("pairs.txt", "tsv") == "tsv"
    write_pairs(tmp_path / "pairs.txt", [row(1.0, "a", "b")], format="jsonl")
    assert (tmp_path / "pairs.txt").read_text().startswith("{")
