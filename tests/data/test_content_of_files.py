"""Known formats are read wherever texts are; what is plainly no text is refused where plain text is read."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from formats_helpers import fails, write

from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.data.running_text import read_running_text
from hf_xlsr.data.sources import Source
from hf_xlsr.mining.texts import SourceTexts, read_texts
from hf_xlsr.utils.errors import XlsrError

PAIRS = [{"source": "a & b", "target": "A & B"}, {"source": "c", "target": "C"}]
TEXTS = [{"text": "the cat runs."}, {"text": "a dog sleeps!"}]
SGM = '<srcset setid="news"><doc docid="1">\n<p>\n<seg id="1">a &amp; b</seg>\n<seg id="2">\nc\n</seg></doc></srcset>'
SRT = "".join(f"{n}\n00:00:0{n},000 --> 00:00:0{n},900\nLine {n}.\n\n" for n in range(1, 5))
NO_TEXT = {
    "JSON lines": '{"text": "a"}\n{"text": "b"}\n',
    "JSON list": json.dumps(TEXTS),
    "JSON list on lines": json.dumps(TEXTS, indent=1),
    "JSON object on lines": json.dumps({"data": TEXTS}, indent=2),
    "SGM": SGM,
    "HTML": "<!DOCTYPE html>\n<html><body>\n<p>One.</p>\n",
    "XML": '<?xml version="1.0"?>\n<a>b</a>\n',
    "tags": "<p>one</p>\n<p>two</p>\n<p>three</p>\n",
    "SRT": SRT,
    "VTT": "WEBVTT\n\n00:01.000 --> 00:02.000\nOne.\n",
}
TEXT = {
    "sentences": "One.\nTwo.\n",
    "a tag": "<b>Look</b> here.\nTwo.\nThree.\nFour.\n",
    "brackets": "[1] A note.\n{curly} text\n[laughs]\n",
    "one line": "<p>one</p>",
    "arrows": "a --> b\nc\nd\n",
    "nothing": "\n \n",
    "less": "<3 you\n<unk> x\nx < y\ny > x\n",
}


def documents() -> dict[str, str]:
    return {
        "list": json.dumps(PAIRS),
        "list on lines": json.dumps(PAIRS, indent=2),
        "data": json.dumps({"version": "1", "data": PAIRS}),
        "lines": "".join(json.dumps(pair) + "\n" for pair in PAIRS),
    }


@pytest.mark.parametrize("name", documents())
def test_json_of_datasets(name: str, tmp_path: Path) -> None:
    assert list(read_rows(write(tmp_path, "a.json", documents()[name]))) == PAIRS
    assert list(read_rows(write(tmp_path, "a.json.gz", gzip.compress(documents()[name].encode())))) == PAIRS


@pytest.mark.parametrize("content", ['{"a": 1,\n "b": 2}', "[1, 2", "[", "", '"text"', "[" * 100_000])
def test_other_json_is_refused(content: str, tmp_path: Path) -> None:
    fails(write(tmp_path, "a.json", content), "a.json cannot be read")


def test_rows_of_a_list_that_are_no_objects_are_bad_lines(tmp_path: Path) -> None:
    file = write(tmp_path, "a.json", json.dumps([*PAIRS, 3, {"source": "\ud800", "target": "x"}]))
    assert list(read_rows(file)) == PAIRS


def opus_zip(names: dict[str, str], **options: Any) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", **options) as archive:
        for name, text in names.items():
            archive.writestr(name, text)
    return content.getvalue()


OPUS = {
    "README": "Hello",
    "LICENSE": "",
    "X.de-en.de": "A & B\nC\n",
    "X.de-en.en": "a & b\nc\n",
    "X.de-en.xml": "<x/>",
}


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_zip_of_opus(compression: int, tmp_path: Path) -> None:
    file = write(tmp_path, "x.zip", opus_zip(OPUS, compression=compression))
    assert list(read_rows(file, languages=["en", "de"])) == PAIRS
    assert [row["text"] for row in read_rows(file, languages=["de"], required=["text"])] == ["A & B", "C"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.zip"]


BAD_ZIPS = {
    "no zip": (b"PK no zip", "cannot be read"),
    "three texts": (opus_zip({**OPUS, "X.fr": "x\n", "../Y.de": "y\n"}), "the 2 texts of the languages"),
    "another method": (opus_zip(OPUS, compression=zipfile.ZIP_LZMA), "another method"),
    "encrypted": (opus_zip(OPUS).replace(b"PK\x01\x02\x14\x03\x14\0\0", b"PK\x01\x02\x14\x03\x14\0\x01"), "encrypted"),
    "a changed text": (opus_zip(OPUS).replace(b"a & b\nc", b"a & b\nX"), "cannot be read after its first"),
    "a short text": (opus_zip({**OPUS, "X.de-en.de": "A\n"}), "ends after line 1"),
}


@pytest.mark.parametrize("name", BAD_ZIPS)
def test_bad_zip_is_refused(name: str, tmp_path: Path) -> None:
    content, part = BAD_ZIPS[name]
    fails(write(tmp_path, "x.zip", content), part, languages=["en", "de"])


def test_segments_of_wmt(tmp_path: Path) -> None:
    source = write(tmp_path, "newstest-ende-src.en.sgm", SGM)
    target = write(tmp_path, "newstest-ende-ref.de.sgm", SGM.upper().replace("AMP", "amp"))
    assert list(read_rows([target, source], languages=["en", "de"])) == PAIRS
    fails(write(tmp_path, "a.sgm", "<seg>one"), "its last <seg> has no end", required=["text"])
    assert read_texts(source, tmp_path, "source")["lines"] == 2
    assert (tmp_path / "texts.bin").read_text("utf-8") == "a & bc"


@pytest.mark.parametrize("suffix", ["txt", "json", "jsonl"])
def test_rows_for_mining(suffix: str, tmp_path: Path) -> None:
    """JSON lines under another name are no sentences."""
    file = write(tmp_path, f"a.{suffix}", NO_TEXT["JSON lines"])
    if suffix == "txt":
        with pytest.raises(XlsrError, match="holds JSON, not plain text"):
            list(SourceTexts(str(file)))
    else:
        assert list(SourceTexts(str(file))) == ["a", "b"]


@pytest.mark.parametrize("name", NO_TEXT)
def test_what_is_no_text_is_refused(name: str, tmp_path: Path) -> None:
    file = write(tmp_path, "a.txt", NO_TEXT[name])
    other = write(tmp_path, "b.txt", "one\n")
    fails(file, "not plain text", "(text=0)", required=["text"])
    fails([other, file], "not plain text", "(source=0,target=1)")
    with pytest.raises(XlsrError, match="not plain text"):
        read_texts(file, tmp_path, "source")
    with pytest.raises(XlsrError, match="not plain text"):
        list(read_running_text([Source(path=str(file))], languages=["en"]))

    lines = [line for line in NO_TEXT[name].split("\n") if line]
    assert [row["text"] for row in read_rows(file, required=["text"], columns="text=0")] == lines
    assert [row["text"] for row in read_rows(file, required=["text"], format="moses")] == lines


@pytest.mark.parametrize("name", TEXT)
def test_text_is_read(name: str, tmp_path: Path) -> None:
    file = write(tmp_path, "a.txt", TEXT[name])
    lines = [line for line in TEXT[name].split("\n") if line.strip()]
    assert [row["text"] for row in read_rows(file, required=["text"])] == lines


def test_two_tables_of_any_name_are_no_line_aligned_files(tmp_path: Path) -> None:
    table = write(tmp_path, "a.txt", "a\tb\nc\td\ne\tf\n")
    fails([table, table], "a table with tabs")
    assert len(list(read_rows(table, required=["text"]))) == 3
