from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from formats_helpers import fails, read_with_side_file, write

from hf_xlsr.data.formats.lines import MAX_LINE
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.data.sources import Source, open_texts
from hf_xlsr.utils.errors import XlsrError


def test_columns_of_a_header(tmp_path):
    path = write(tmp_path, "a.tsv", "id\ttarget\tsource\tlabel\textra\n1\tzwei\ttwo\t0.5\tx\n")
    assert list(read_rows(path)) == [{"source": "two", "target": "zwei", "label": "0.5"}]


def test_tsv_has_no_quotation(tmp_path):
    path = write(tmp_path, "q.tsv", '"open\tb\n"c"\t""\n')
    assert list(read_rows(path)) == [{"source": '"open', "target": "b"}, {"source": '"c"', "target": '""'}]


@pytest.mark.parametrize(
    ("options", "row"),
    [
        ({}, {"source": "one", "target": "eins"}),
        ({"required": ("second", "first")}, {"second": "one", "first": "eins"}),
        ({"columns": "target=0,source=1"}, {"target": "one", "source": "eins"}),
    ],
)
def test_columns_without_a_header(tmp_path, options, row):
    path = write(tmp_path, "b.csv", "one,eins\ntwo,zwei\n")
    assert next(read_rows(path, **options)) == row


SEPARATORS = {"csv": ",", "tsv": "\t"}


def write_table(folder: Path, kind: str, header: list[str]) -> Path:
    separator = SEPARATORS[kind]
    return write(folder, f"a.{kind}", separator.join(header) + f"\none{separator}un\n")


@pytest.mark.parametrize("kind", SEPARATORS)
@pytest.mark.parametrize("header", [["en", "fr"], ["eng", "deu_Latn"]])
def test_header_of_languages(tmp_path, kind, header):
    path = write_table(tmp_path, kind, header)
    fails(path, "does not name source, target")

    row = {"source": "one", "target": "un"}
    first, second = header
    assert list(read_rows(path, columns=f"source={first},target={second}")) == [row]
    assert list(read_rows(path, languages=header)) == [row]
    assert len(list(read_rows(path, columns="source=0,target=1"))) == 2


@pytest.mark.parametrize("kind", SEPARATORS)
@pytest.mark.parametrize("texts", [["the", "der"], ["no", "no"], ["in", "hall"]])
def test_texts_that_are_codes_of_languages_too(tmp_path, kind, texts):
    """Words that are codes of small languages, the same word twice, and texts of one column are what they are."""
    row = next(read_rows(write_table(tmp_path, kind, texts)))
    assert [row["source"], row["target"]] == texts


def test_stray_quotation_mark_in_csv_costs_one_line(tmp_path):
    content = 'source,target\n"a\nb","c, ""d"""\r\n"open,x\ne,f\n"g"h,i\nj 5" k,l\n"m\r\nn",o\n"never closed,p\nq,r\n'

    rows, bad, _ = read_with_side_file(tmp_path, write(tmp_path, "a.csv", content))
    assert rows == [
        {"source": "a\nb", "target": 'c, "d"'},
        {"source": "e", "target": "f"},
        {"source": 'j 5" k', "target": "l"},
        {"source": "m\r\nn", "target": "o"},
        {"source": "q", "target": "r"},
    ]
    assert bad == [(4, "malformed quoting"), (6, "malformed quoting"), (10, "unclosed quote")]


LONG = b"x" * (MAX_LINE + 1)
BAD_SIDES = {
    b"caf\xe9": "invalid UTF-8",
    b"nul \0 here": "NUL character",
    b" \xe3\x80\x80": "empty target",
    LONG: "over-long line",
    b"x" * 3 * MAX_LINE: "over-long line",
}
SIDES = list(BAD_SIDES)
REASONS = list(BAD_SIDES.values())


@pytest.mark.parametrize("kind", SEPARATORS)
def test_each_bad_line_of_a_table(tmp_path, kind):
    separator = SEPARATORS[kind]
    content = b"\xef\xbb\xbfsource|target\none|un\n"
    content += b"".join(b"bad|%b\n" % side for side in SIDES)
    content += b"bad\n\nbad|bad|bad\ntwo|deux\r\nthree|\xe2\x80\xa8x"
    path = write(tmp_path, f"a.{kind}", content.replace(b"|", separator.encode()))

    rows, bad, entries = read_with_side_file(tmp_path, path)

    assert [row["target"] for row in rows] == ["un", "deux", "\u2028x"]
    assert bad == list(enumerate([*REASONS, *["wrong column count"] * 3], 3))
    assert {entry["file"] for entry in entries} == {str(path)}
    assert entries[0]["text"] == f"bad{separator}caf\\xe9"
    assert max(len(entry["text"]) for entry in entries) == 1000


def test_each_bad_line_of_jsonl(tmp_path):
    good = b'{"source": "one", "target": "un"}'
    number = b'{"source": 7, "target": "\\ud83d\\ude00"}'
    bad_lines = {
        b'{"source": "caf\xe9", "target": "b"}': "invalid UTF-8",
        b'{"source": "a\0", "target": "b"}': "NUL character",
        b"{nonsense": "malformed JSON",
        b"": "malformed JSON",
        b'["a", "b"]': "malformed JSON",
        b"null": "malformed JSON",
        b'{"source": "a", "target": null}': "empty target",
        b'{"source": "a"}': "empty target",
        b"[" * 100_000: "malformed JSON",
        b'{"source": "\\ud800", "target": "b"}': "malformed JSON",
        b'{"source": "\\u0000", "target": "b"}': "NUL character",
        LONG: "over-long line",
        b'{"source": ["a"], "target": "b"}': "source is not a text",
    }
    path = write(tmp_path, "a.jsonl", b"\n".join([good, *bad_lines, good, number]))

    rows, bad, _ = read_with_side_file(tmp_path, path)

    assert rows == [{"source": "one", "target": "un"}] * 2 + [{"source": "7", "target": "\U0001f600"}]
    assert bad == list(enumerate(bad_lines.values(), 2))


def test_later_records_of_jsonl_have_columns_of_their_own(tmp_path):
    records = [{"text": "hello"}, {"text": "hallo", "lang": "de"}, {"text": "salut", "lang": "fr"}]
    path = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, records)))
    rows = open_texts(Source.parse(str(path)), ["text"], languages=["en", "de"])
    assert [row["lang"] for row in rows] == ["en", "de", "fr"]


def test_each_bad_line_of_moses_keeps_the_alignment(tmp_path):
    english = write(tmp_path, "c.en", b"a\n" + b"bad\n" * len(SIDES) + b"\t\nz\r\n")
    french = write(tmp_path, "c.fr", b"\n".join([b"\xef\xbb\xbfA", *SIDES, b"good\nZ"]))

    rows, bad, entries = read_with_side_file(tmp_path, f"{tmp_path}/c.{{en,fr}}")

    assert rows == [{"source": "a", "target": "A"}, {"source": "z", "target": "Z"}]
    assert bad == list(enumerate([*REASONS, "empty source"], 2))
    assert [entry["file"] for entry in entries] == [str(french)] * len(SIDES) + [str(english)]


@pytest.fixture
def moses(tmp_path):
    """English, French and texts of no language, line by line."""
    for name, text in (("en", b"one\n"), ("fr", b"un\n"), ("txt", b"two\n")):
        write(tmp_path, f"c.{name}.gz", gzip.compress(text))
    return tmp_path


@pytest.mark.parametrize(
    ("files", "options", "texts"),
    [
        ("en,fr", {"languages": ["en", "fr"]}, ["one", "un"]),
        ("fr,en", {"languages": ["en", "fr"]}, ["one", "un"]),
        ("fr,en", {"languages": ["fr", "en"]}, ["un", "one"]),
        ("fr,en", {"languages": ["en", "fr"], "columns": "source=fr,target=en"}, ["un", "one"]),
        ("fr,en", {}, ["un", "one"]),
    ],
)
def test_moses_files_are_matched_by_language(moses, files, options, texts):
    row = next(read_rows(f"{moses}/c.{{{files}}}.gz", **options))
    assert [row["source"], row["target"]] == texts


def test_moses_file_of_another_language(moses):
    for files, languages in (("fr,txt", ["en", "fr"]), ("fr,en", ["ru", "de"])):
        with pytest.raises(XlsrError, match=f"'fr' and would be read as '{languages[0]}'"):
            next(read_rows(f"{moses}/c.{{{files}}}.gz", languages=languages))
