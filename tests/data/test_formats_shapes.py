"""What the shape of a table says: quotation, header, separator, columns of rows."""

from __future__ import annotations

import csv
import io
import re
import tempfile
from pathlib import Path
from typing import Any

import pandas
import pytest
from datasets import Dataset, load_dataset
from formats_helpers import fails, read_with_side_file, write
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.mining.outputs import write_pairs

README = Path(__file__).parents[2] / "README.md"
HARD = [
    '"',
    '""',
    '"a"',
    'say "a"',
    '"a" b',
    "NA",
    "null",
    "a\tb",
    "a\rb",
    "a\r\nb",
    "\n",
    "a,b",
    "nan",
    "",
    "\\",
    "'",
    "1",
]
PLAIN = [(f"text {number}", f"Text, {number}") for number in range(30)]


def texts_of(path: Path, **options: Any) -> list[tuple[str, str]]:
    rows = read_rows(path, quarantine=Quarantine(), **options)
    return [(row["source"], row["target"]) for row in rows]


def note_of(path: Path, **options: Any) -> tuple[str, str]:
    """How a file was read, and whether the report says it."""
    quarantine = Quarantine()
    list(read_rows(path, quarantine=quarantine, **options))
    return quarantine.notes[path.name], quarantine.report()


# Quotation.


def spreadsheet(rows: list[tuple[str, str]], quoting: Any) -> str:
    file = io.StringIO()
    csv.writer(file, delimiter="\t", quoting=quoting).writerows([("source", "target"), *rows])
    return file.getvalue()


def excel(rows: list[tuple[str, str]]) -> str:
    """Tab-delimited text of Excel, which also quotes fields with commas."""
    lines = []
    for row in [("source", "target"), *rows]:
        fields = ['"' + text.replace('"', '""') + '"' if re.search('[",\n]', text) else text for text in row]
        lines.append("\t".join(fields))
    return "\r\n".join(lines)


def of_datasets(rows: list[tuple[str, str]]) -> str:
    file = io.BytesIO()
    data = Dataset.from_list([{"source": source, "target": target} for source, target in rows])
    data.to_csv(file, sep="\t", index=False)
    return file.getvalue().decode()


WRITERS = {
    "pandas": lambda rows: pandas.DataFrame(rows, columns=["source", "target"]).to_csv(sep="\t", index=False),
    "datasets": of_datasets,
    "excel": excel,
    "all quoted": lambda rows: spreadsheet(rows, csv.QUOTE_ALL),
    "texts quoted": lambda rows: spreadsheet(rows, csv.QUOTE_NONNUMERIC),
}


@pytest.mark.parametrize("place", [0, 15, 30], ids=["first", "in the middle", "last"])
@pytest.mark.parametrize("writer", WRITERS)
def test_quoted_table(tmp_path: Path, writer: str, place: int) -> None:
    rows = [*PLAIN[:place], ('He said "yes".', '"Ja", sagte er.'), ("a\nb", "c"), ('"', '""'), *PLAIN[place:]]
    path = write(tmp_path, "a.tsv", WRITERS[writer](rows))
    assert texts_of(path) == rows
    note, report = note_of(path)
    assert note == "header: yes, fields are quoted"
    assert note in report


LITERAL = {
    "stray quotation marks": [('"Yes" is a word.', '"Ja" ist ein Wort.'), ('"Come in, he said.', '5 inch: 5"')],
    "quotations": [('"Come in."', '"Herein."'), ('"Come in, Tom."', '"Herein, Tom."')],
    "quotations among others": [('"Come in."', '"Herein."'), ('"Come in," he said.', '"Herein", sagte er.')],
    "no quotation marks": [("Come in, Tom.", "Herein, Tom.")],
    "one mark": [('"', "b")],
    "marks around a row": [('"Come in, he said.', 'Herein, sagte er."')],
    "marks around rows": [("one", '"eins'), ("two", "zwei"), ("three", 'drei"')],
}


@pytest.mark.parametrize("shape", LITERAL)
def test_literal_table(tmp_path: Path, shape: str) -> None:
    rows = PLAIN + LITERAL[shape] + PLAIN
    path = write(tmp_path, "a.tsv", "source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in rows))
    assert texts_of(path) == rows
    assert note_of(path) == ("header: yes", "")


def test_format_overrides_what_the_file_shows(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", 'source\ttarget\n"one"\t"eins, ""x"""\n')
    assert texts_of(path) == texts_of(path, format="tsv-quoted") == [("one", 'eins, "x"')]
    assert texts_of(path, format="tsv-literal") == [('"one"', '"eins, ""x"""')]


def readme_options() -> dict[str, Any]:
    """The arguments with which the README reads a TSV file in Python."""
    line = r'load_dataset\("csv", data_files="pairs.tsv", (.*), split="train"\)'
    call = re.search(line, README.read_text("utf-8"))
    assert call is not None
    options: dict[str, Any] = eval(f"dict({call[1]})")
    return options


CHARACTERS = st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")
ANY = st.lists(st.sampled_from(HARD) | st.text(CHARACTERS)).map("".join)
# Marks around a text that looks like rows of a table may be text.
TEXTS = ANY.filter(lambda text: "\t" not in text or "\n" not in text)
PAIRS = st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6)


def as_rows(pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"score": 1.5, "source": source, "target": target} for source, target in [*pairs, ("a word", "ein Wort")]]


@settings(max_examples=60)
@given(PAIRS)
def test_what_we_write_is_read_by_us_and_by_pandas(pairs: list[tuple[str, str]]) -> None:
    rows = as_rows(pairs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tsv"
        write_pairs(path, rows)
        table = pandas.read_csv(path, **readme_options())
        read = [*read_rows(path, required=("score",), quarantine=Quarantine())]
    assert table.to_dict("records") == rows
    assert [(row["source"], row["target"]) for row in read] == [(row["source"], row["target"]) for row in rows]


def test_what_we_write_is_read_as_the_readme_says(tmp_path: Path) -> None:
    rows = as_rows([(text, text) for text in HARD])
    path = tmp_path / "a.tsv"
    write_pairs(path, rows)
    data = load_dataset("csv", data_files=str(path), split="train", cache_dir=str(tmp_path), **readme_options())
    assert list(data) == rows


# Headers.

PAIR = ("source", "target")
SENTENCES = ("sentence1", "sentence2", "score")
HEADERS = [
    ("src\ttrg", PAIR, {}, True),
    ("Source\tTARGET", PAIR, {}, True),
    ("tgt_text\tsrc_text", PAIR, {}, True),
    ("source_text\ttarget_text", PAIR, {}, True),
    ("source sentence\ttarget sentence", PAIR, {}, True),
    ("#1 String\t#2 String", PAIR, {}, True),
    ("sentence1\tsentence2", PAIR, {}, True),
    ("text_en\ttext_de", PAIR, {}, True),
    ("sentence_eng_Latn\tsentence_deu_Latn", PAIR, {}, True),
    ("English\tGerman", PAIR, {"languages": ("en", "de")}, True),
    ("German\tEnglish", PAIR, {"languages": ("eng", "deu")}, True),
    ("de-AT\ten_GB", PAIR, {"languages": ("en", "de")}, True),
    ("zh-Hans\tzh-Hant", PAIR, {"languages": ("zh-Hans", "zh-TW")}, True),
    ("#1 String\t#2 String\tQuality", SENTENCES[:2], {"columns": "sentence1=#1 String,sentence2=#2 String"}, True),
    ("sentence_1\tsentence_2\tSimilarity", SENTENCES, {}, True),
    ("Satz eins\tSatz zwei\tWert", SENTENCES, {}, True),
    ("one\teins", PAIR, {}, False),
    ("the text\tder Text", PAIR, {}, False),
    ("English\tEnglisch", PAIR, {}, False),
    ("Text\ttext", PAIR, {}, False),
    ("source\tQuelle", PAIR, {}, False),
    ("1\t2", PAIR, {}, False),
    ("a dog\ta cat\t0.5", SENTENCES, {}, False),
    ("a dog\ta cat\t-", SENTENCES, {}, False),
    ("a dog\ta cat\tNaN", SENTENCES, {}, False),
]


@pytest.mark.parametrize("suffix", ["tsv", "csv"])
@pytest.mark.parametrize(("first", "required", "options", "is_header"), HEADERS)
def test_header_by_its_shape(
    tmp_path: Path, suffix: str, first: str, required: tuple[str, ...], options: dict[str, Any], is_header: bool
) -> None:
    names = first.split("\t")
    lines = ["\t".join([f"{name} {number}" for name in names[:2]] + ["1.5"] * (len(names) - 2)) for number in range(4)]
    content = "\n".join([first, *lines])
    path = write(tmp_path, f"a.{suffix}", content if suffix == "tsv" else content.replace("\t", ","))

    rows = list(read_rows(path, required=required, quarantine=Quarantine(), **options))
    assert len(rows) == (4 if is_header else 5)
    assert note_of(path, required=required, **options)[0] == f"header: {'yes' if is_header else 'no'}"

    if is_header:  # what is under the name of a side is on this side
        swapped = first in ("tgt_text\tsrc_text", "German\tEnglish", "de-AT\ten_GB")
        assert rows[0][required[0]] == f"{names[1 if swapped else 0]} 0"


@pytest.mark.parametrize(
    "first",
    ["English\tGerman", "en\tde", "target\ttext", "id\tsource", "source\ttarget_lang", "source\tsource_text\tid"],
)
def test_header_that_does_not_name_the_columns(tmp_path: Path, first: str) -> None:
    row = "\t".join(["one"] * len(first.split("\t")))
    fails(write(tmp_path, "a.tsv", f"{first}\n{row}\n"), "does not name source, target")


def test_header_with_fewer_names_than_columns(tmp_path: Path) -> None:
    """As R writes it: the names of rows have no name, and the columns would be shifted."""
    fails(write(tmp_path, "a.tsv", "source\ttarget\n1\tone\teins\n2\ttwo\tzwei\n"), "source, target", "3 columns")


# Separators.


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ("source\ttarget\nHi, you.\tHallo, du.\nYes, me.\tJa, ich.\n", "columns are separated by tabs"),
        (
            'source\ttarget\n"Hi, you."\t"Hallo, du."\n"Yes, ""me""."\t"Ja, ich."\n',
            "separated by tabs, fields are quoted",
        ),
        ("source;target\nHi, you.;Hallo, du.\nYes.;Ja.\n", "columns are separated by ;"),
        ('source,target\n"Hi; you.","Hallo;\tdu."\n"Yes; me.","Ja;\tich."\n', ""),
        ("source,target\nHi; you.,Hallo; du.\nYes; me.,Ja; ich.\n", ""),
    ],
)
def test_separator_of_csv(tmp_path: Path, content: str, note: str) -> None:
    path = write(tmp_path, "a.csv", content)
    rows = texts_of(path)
    assert [source[:2] for source, _ in rows] == ["Hi", "Ye"]
    assert [target[:2] for _, target in rows] == ["Ha", "Ja"]
    assert note in note_of(path)[1]
    assert bool(note) == bool(note_of(path)[1])


def test_format_overrides_the_separator(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "one\tand,eins\nmore\tyet,mehr\n")
    assert texts_of(path, format="csv-comma") == [("one\tand", "eins"), ("more\tyet", "mehr")]


# Columns of rows.

STS = {"required": SENTENCES, "columns": "score=4,sentence1=5,sentence2=6"}


@pytest.mark.parametrize("first", [7, 9])
@pytest.mark.parametrize("name", ["sts-dev.csv", "sts-dev.tsv"])
def test_rows_of_two_widths(tmp_path: Path, name: str, first: int) -> None:
    """STS-B as published: some rows also have their origins."""
    lines = []
    for number in range(100):
        width = first if number == 0 else 9 if number % 5 == 3 else 7
        fields = ["main", "images", "2012", f"{number:04}", "2.5", f'A "man", {number}.', "One.", "http://a", "b"]
        lines.append("\t".join(fields[:width]))

    quarantine = Quarantine()
    rows = list(read_rows(write(tmp_path, name, "\n".join(lines)), quarantine=quarantine, **STS))

    assert [row["sentence1"] for row in rows] == [f'A "man", {number}.' for number in range(100)]
    assert quarantine.total == 0
    assert quarantine.repairs["extra columns"] == sum(len(line.split("\t")) == 9 for line in lines)
    assert "extra columns" in quarantine.report()


@pytest.mark.parametrize("first", ["My glossary", "# exported 2024", "", "My glossary\t"])
def test_first_line_that_is_no_row(tmp_path: Path, first: str) -> None:
    content = f"{first}\nsource\ttarget\none\teins\ntwo\tzwei\n"
    rows, bad, _ = read_with_side_file(tmp_path, write(tmp_path, "a.tsv", content))
    assert [row["target"] for row in rows] == ["eins", "zwei"]
    assert bad == [(1, "wrong column count")]


@pytest.mark.parametrize("first", ["one", "one\teins\textra"])
def test_first_line_of_another_width(tmp_path: Path, first: str) -> None:
    content = f"{first}\n" + "two\tzwei\n" * 3
    rows, bad, _ = read_with_side_file(tmp_path, write(tmp_path, "a.tsv", content))
    assert [(row["source"], row["target"]) for row in rows] == [("two", "zwei")] * 3
    assert bad == [(1, "wrong column count")]


@pytest.mark.parametrize(
    ("content", "texts", "num_bad"),
    [
        ("source,target\none,eins\nHi, you,Hallo, du\n", [("one", "eins")], 1),  # a comma that is not quoted
        ("source,target\none,eins,,\ntwo,zwei,,\n", [("one", "eins"), ("two", "zwei")], 0),
        ("target,source,id\neins,one\nzwei,two,7\n", [("one", "eins"), ("two", "zwei")], 0),
        ("id,source,target\n7,one\n8,two,zwei\n", [("two", "zwei")], 1),
    ],
)
def test_odd_rows_of_csv(tmp_path: Path, content: str, texts: list[tuple[str, str]], num_bad: int) -> None:
    rows, bad, _ = read_with_side_file(tmp_path, write(tmp_path, "a.csv", content))
    assert [(row["source"], row["target"]) for row in rows] == texts
    assert [reason for _, reason in bad] == ["wrong column count"] * num_bad


def test_stray_tab_in_a_long_file(tmp_path: Path) -> None:
    """One row of many with another number of columns has probably a tab in a text."""
    content = "one\teins\n" * 500 + "a\tb\tc\n" + "one\teins\n" * 500
    rows, bad, _ = read_with_side_file(tmp_path, write(tmp_path, "a.tsv", content))
    assert len(rows) == 1000
    assert bad == [(501, "wrong column count")]
