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


def test_header_or_not(tmp_path):
    path = write(tmp_path, "a.tsv", "id\ttarget\tsource\tlabel\textra\n1\tzwei\ttwo\t0.5\tx\n")
    assert list(read_rows(path)) == [{"source": "two", "target": "zwei", "label": "0.5"}]

    path = write(tmp_path, "q.tsv", '"open\tb\n"c"\t""\n')  # TSV has no quotation
    assert list(read_rows(path)) == [{"source": '"open', "target": "b"}, {"source": '"c"', "target": '""'}]

    path = write(tmp_path, "b.csv", "one,eins\ntwo,zwei\n")
    assert next(read_rows(path)) == {"source": "one", "target": "eins"}
    assert next(read_rows(path, required=("second", "first"))) == {"second": "one", "first": "eins"}
    assert next(read_rows(path, columns="target=0,source=1")) == {"target": "one", "source": "eins"}


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_header_of_languages(tmp_path, name):
    comma = "," if name.endswith("csv") else "\t"

    def table(first: str, second: str) -> Path:
        return write(tmp_path, name, f"{first}{comma}{second}\none{comma}un\n")

    for first, second in (("en", "fr"), ("eng", "deu_Latn")):
        path = table(first, second)
        fails(path, "does not name source, target")
        assert list(read_rows(path, columns=f"source={first},target={second}")) == [{"source": "one", "target": "un"}]
        assert len(list(read_rows(path, columns="source=0,target=1"))) == 2
        assert list(read_rows(path, languages=[first, second])) == [{"source": "one", "target": "un"}]
    # Words that are codes of small languages, the same word twice, and texts of one column are what they are.
    for first, second in (("the", "der"), ("no", "no"), ("in", "hall")):
        assert next(read_rows(table(first, second))) == {"source": first, "target": second}


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
BAD_SIDES = [
    (b"caf\xe9", "invalid UTF-8"),
    (b"nul \0 here", "NUL character"),
    (b" \xe3\x80\x80", "empty target"),
    (LONG, "over-long line"),
    (b"x" * 3 * MAX_LINE, "over-long line"),
]


@pytest.mark.parametrize("kind", ["tsv", "csv"])
def test_each_bad_line_of_a_table(tmp_path, kind):
    lines = [(b"source", b"target"), (b"one", b"un")]
    lines += [(b"bad", side) for side, _ in BAD_SIDES]
    lines += [(b"bad",), (b"",), (b"bad", b"bad", b"bad")]
    lines += [(b"two", b"deux\r"), (b"three", "\u2028x".encode())]
    comma = b"\t" if kind == "tsv" else b","
    path = write(tmp_path, f"a.{kind}", b"\xef\xbb\xbf" + b"\n".join(map(comma.join, lines)))

    rows, bad, entries = read_with_side_file(tmp_path, path)
    assert [row["target"] for row in rows] == ["un", "deux", "\u2028x"]
    reasons = [reason for _, reason in BAD_SIDES] + ["wrong column count"] * 3
    assert bad == list(enumerate(reasons, 3))
    assert {entry["file"] for entry in entries} == {str(path)}
    assert entries[0]["text"] == f"bad{comma.decode()}caf\\xe9"
    assert max(len(entry["text"]) for entry in entries) == 1000


def test_each_bad_line_of_jsonl(tmp_path):
    good = b'{"source": "one", "target": "un"}'
    bad_lines = [
        (b'{"source": "caf\xe9", "target": "b"}', "invalid UTF-8"),
        (b'{"source": "a\0", "target": "b"}', "NUL character"),
        (b"{nonsense", "malformed JSON"),
        (b"", "malformed JSON"),
        (b'["a", "b"]', "malformed JSON"),
        (b"null", "malformed JSON"),
        (b'{"source": "a", "target": null}', "empty target"),
        (b'{"source": "a"}', "empty target"),
        (b"[" * 100_000, "malformed JSON"),
        (b'{"source": "\\ud800", "target": "b"}', "malformed JSON"),
        (b'{"source": "\\u0000", "target": "b"}', "NUL character"),
        (LONG, "over-long line"),
        (b'{"source": ["a"], "target": "b"}', "source is not a text"),
    ]
    number = b'{"source": 7, "target": "\\ud83d\\ude00"}'
    lines = [good, *(line for line, _ in bad_lines), good, number]
    rows, bad, _ = read_with_side_file(tmp_path, write(tmp_path, "a.jsonl", b"\n".join(lines)))
    assert rows == [{"source": "one", "target": "un"}] * 2 + [{"source": "7", "target": "\U0001f600"}]
    assert bad == list(enumerate([reason for _, reason in bad_lines], 2))


def test_later_records_of_jsonl_have_columns_of_their_own(tmp_path):
    records = [{"text": "hello"}, {"text": "hallo", "lang": "de"}, {"text": "salut", "lang": "fr"}]
    path = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, records)))
    rows = open_texts(Source.parse(str(path)), ["text"], languages=["en", "de"])
    assert [row["lang"] for row in rows] == ["en", "de", "fr"]


def test_each_bad_line_of_moses_keeps_the_alignment(tmp_path):
    sides = [side for side, _ in BAD_SIDES]
    reasons = [reason for _, reason in BAD_SIDES]
    english = write(tmp_path, "c.en", b"\n".join([b"a", *[b"bad"] * len(sides), b"\t", b"z\r\n"]))
    french = write(tmp_path, "c.fr", b"\n".join([b"\xef\xbb\xbfA", *sides, b"good", b"Z"]))
    rows, bad, entries = read_with_side_file(tmp_path, f"{tmp_path}/c.{{en,fr}}")
    assert rows == [{"source": "a", "target": "A"}, {"source": "z", "target": "Z"}]
    assert bad == list(enumerate([*reasons, "empty source"], 2))
    assert [entry["file"] for entry in entries] == [str(french)] * len(sides) + [str(english)]


def test_moses_files_are_matched_by_language(tmp_path):
    for name, text in (("en", "one\n"), ("fr", "un\n"), ("txt", "two\n")):
        write(tmp_path, f"c.{name}.gz", gzip.compress(text.encode()))

    def read(labels, *languages, **options):
        return next(read_rows(f"{tmp_path}/c.{{{labels}}}.gz", languages=languages, **options))

    assert read("en,fr", "en", "fr") == read("fr,en", "en", "fr") == {"source": "one", "target": "un"}
    assert read("fr,en", "fr", "en") == {"source": "un", "target": "one"}
    assert read("fr,en", "en", "fr", columns="source=fr,target=en") == {"source": "un", "target": "one"}
    assert read("fr,en") == read("fr,en", "ru", "de") == {"source": "un", "target": "one"}  # they name no others
    with pytest.raises(XlsrError, match="'fr' would be read as 'en'"):
        read("fr,txt", "en", "fr")
