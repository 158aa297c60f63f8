from __future__ import annotations

import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
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


def write(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    return write_pairs(path, rows, languages=("en", "fr"))


def read(path: Path) -> list[dict[str, Any]]:
    return list(read_rows(path, languages=("en", "fr")))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("texts", [HARD, []])
def test_read_back(texts: list[str], format: str, tmp_path: Path):
    rows = [row(1.5 - number / 100, text, text[::-1]) for number, text in enumerate(texts)]
    file = tmp_path / "sub" / f"pairs.{format}"
    assert write(file, iter(rows)) == len(rows)

    read_back = read(file)
    assert len(read_back) == len(rows)
    for pair, expected in zip(read_back, rows, strict=True):
        assert pair["source"] == expected["source"]
        assert pair["target"] == expected["target"]
        if format != "tmx":
            assert float(pair["score"]) == pytest.approx(expected["score"])
    assert list(file.parent.iterdir()) == [file]


@settings(max_examples=20)  # Parquet is read in a process each
@given(pair=st.tuples(TEXT, TEXT))
def test_any_text(pair: tuple[str, str]):
    rows = [row(1.0, *pair), row(0.5, "after", "après")]
    with tempfile.TemporaryDirectory() as folder:
        for format in FORMATS:
            file = Path(folder) / f"pairs.{format}"
            write(file, rows)
            read_back = [(pair["source"], pair["target"]) for pair in read(file)]

            assert read_back[-1] == ("after", "après")
            if format in ("jsonl", "parquet"):
                assert read_back[:-1] == [pair]
            elif len(read_back) == 2:  # a text of only control characters is blank after they are replaced
                assert len(read_back[0][0]) <= len(pair[0])


def test_columns(tmp_path: Path):
    rows = [row(1.0625, "good day", "bonjour", 3)]
    table = tmp_path / "a.tsv"
    parquet = tmp_path / "a.parquet"

    write_pairs(table, rows)
    assert table.read_text() == "score\tsource\ttarget\n1.062500\tgood day\tbonjour\n"

    write_pairs(parquet, rows)
    assert pq.read_table(parquet).to_pylist() == rows

    scored_rows = [{"score": 1.5, "cosine": 0.25, "source": "good day", "target": "bonjour"}]
    write_pairs(parquet, scored_rows, columns=SCORE_COLUMNS)
    assert pq.read_table(parquet).to_pylist() == scored_rows


def test_tmx_has_languages_and_scores(tmp_path: Path):
    file = tmp_path / "a.tmx"
    write_pairs(file, [row(1.0625, "a\rb & <c>", "d\x0be")], languages=("en", "pt-BR"))

    root = ElementTree.parse(file).getroot()
    assert root.tag == "tmx"
    assert root.get("version") == "1.4"

    header = root.find("header")
    assert header is not None
    required = "creationtool creationtoolversion segtype o-tmf adminlang srclang datatype".split()
    assert sorted(header.attrib) == sorted(required)
    assert header.get("srclang") == "en"

    (unit,) = root.findall("body/tu")
    (score,) = unit.findall("prop")
    assert score.get("type") == "score"
    assert score.text == "1.062500"
    language = "{http://www.w3.org/XML/1998/namespace}lang"
    variants = [(tuv.get(language), tuv.findtext("seg")) for tuv in unit.findall("tuv")]
    assert variants == [("en", "a\rb & <c>"), ("pt-BR", "d e")]


def test_labels_of_texts_with_other_line_breaks(tmp_path: Path):
    file = tmp_path / "labels.tsv"
    file.write_text("label\tscore\tsource\ttarget\naccept\t1.0\ta\u2028b\tc\x85\x0bd\n", "utf-8")
    assert read_labels(file) == {("a\u2028b", "c\x85\x0bd"): True}


@pytest.mark.parametrize("format", ["tsv", "parquet"])
def test_failure_leaves_the_old_file(format: str, tmp_path: Path):
    file = tmp_path / f"pairs.{format}"
    write(file, [row(1.0, "old", "vieux")])

    def fails() -> Iterator[dict[str, Any]]:
        yield row(1.0, "new", "neuf")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(file, fails())

    (pair,) = read(file)
    assert pair["source"] == "old"
    assert list(tmp_path.iterdir()) == [file]
