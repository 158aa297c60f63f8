from __future__ import annotations

import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.mining.outputs import FORMATS, SCORE_COLUMNS, read_labels, write_pairs

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


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("texts", [HARD, []])
def test_read_back(texts: list[str], format: str, tmp_path: Path):
    rows = [row(1.5 - number / 100, text, text[::-1]) for number, text in enumerate(texts)]
    file = tmp_path / "sub" / f"pairs.{format}"
    assert write_pairs(file, iter(rows), languages=("en", "fr")) == len(rows)

    read_back = read(file)
    assert [pair["source"] for pair in read_back] == texts
    assert [pair["target"] for pair in read_back] == [text[::-1] for text in texts]
    if format != "tmx":
        assert [float(pair["score"]) for pair in read_back] == pytest.approx([pair["score"] for pair in rows])
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@settings(max_examples=60, deadline=None)
@given(pair=st.tuples(TEXT, TEXT))
def test_any_text(pair: tuple[str, str]):
    rows = [row(1.0, *pair), row(0.5, "after", "après")]
    with tempfile.TemporaryDirectory() as folder:
        for format in FORMATS:
            file = Path(folder) / f"pairs.{format}"
            write_pairs(file, rows, languages=("en", "fr"))
            read_back = [(pair["source"], pair["target"]) for pair in read(file)]

            assert read_back[-1] == ("after", "après")
            if format in ("jsonl", "parquet"):
                assert read_back[:-1] == [pair]
            elif len(read_back) == 2:  # a text of only control characters is blank after they are replaced
                assert len(read_back[0][0]) <= len(pair[0])


def test_columns(tmp_path: Path):
    rows = [row(1.0625, "good day", "bonjour", 3)]
    write_pairs(tmp_path / "a.tsv", rows)
    assert (tmp_path / "a.tsv").read_text() == "score\tsource\ttarget\n1.062500\tgood day\tbonjour\n"

    write_pairs(tmp_path / "a.parquet", rows)
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == rows

    scored = [{"score": 1.5, "cosine": 0.25, "source": "good day", "target": "bonjour"}]
    write_pairs(tmp_path / "b.parquet", scored, columns=SCORE_COLUMNS)
    assert pq.read_table(tmp_path / "b.parquet").to_pylist() == scored


def test_tmx_has_languages_and_scores(tmp_path: Path):
    write_pairs(tmp_path / "a.tmx", [row(1.0625, "a\rb & <c>", "d\x0be")], languages=("en", "pt-BR"))
    root = ElementTree.parse(tmp_path / "a.tmx").getroot()
    assert root.tag == "tmx"
    assert root.get("version") == "1.4"

    header = root.find("header")
    assert header is not None
    required = "creationtool creationtoolversion segtype o-tmf adminlang srclang datatype".split()
    assert sorted(header.attrib) == sorted(required)
    assert header.get("srclang") == "en"

    (unit,) = root.findall("body/tu")
    assert [(prop.get("type"), prop.text) for prop in unit.findall("prop")] == [("score", "1.062500")]
    language = "{http://www.w3.org/XML/1998/namespace}lang"
    variants = [(tuv.get(language), tuv.findtext("seg")) for tuv in unit.findall("tuv")]
    assert variants == [("en", "a\rb & <c>"), ("pt-BR", "d e")]


def test_labels_of_texts_with_other_line_breaks(tmp_path: Path):
    (tmp_path / "labels.tsv").write_text("label\tscore\tsource\ttarget\naccept\t1.0\ta\u2028b\tc\x85\x0bd\n", "utf-8")
    assert read_labels(tmp_path / "labels.tsv") == {("a\u2028b", "c\x85\x0bd"): True}


@pytest.mark.parametrize("format", ["tsv", "parquet"])
def test_failure_leaves_the_old_file(format: str, tmp_path: Path):
    file = tmp_path / f"pairs.{format}"
    write_pairs(file, [row(1.0, "old", "vieux")], languages=("en", "fr"))

    def fails() -> Iterator[dict[str, Any]]:
        yield row(1.0, "new", "neuf")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_pairs(file, fails(), languages=("en", "fr"))
    assert [pair["source"] for pair in read(file)] == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
