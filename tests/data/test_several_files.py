"""Several files together: tables are read one after the other, plain text line by line beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from formats_helpers import WRITERS, fails, write

from hf_xlsr.data.formats.reading import column_names, detect_format, read_rows
from hf_xlsr.evaluation.table import Table

FIRST = [{"source": "the cat", "target": "die Katze"}, {"source": "a dog", "target": "ein Hund"}]
SECOND = [{"source": "old man", "target": "alter Mann"}]
TABLES = ("tsv", "csv", "jsonl")


def two_tables(folder: Path, kind: str) -> list[str]:
    return [str(write(folder, f"{name}.{kind}", WRITERS[kind](rows))) for name, rows in (("a", FIRST), ("b", SECOND))]


@pytest.mark.parametrize("kind", TABLES)
def test_two_tables_are_read_one_after_the_other(kind: str, tmp_path: Path) -> None:
    paths = two_tables(tmp_path, kind)
    assert list(read_rows(paths)) == FIRST + SECOND
    assert list(read_rows(f"{tmp_path}/{{a,b}}.{kind}")) == FIRST + SECOND
    assert set(column_names(paths)) == {"source", "target"}

    table = Table("tatoeba", ("source", "target")).open(paths, ("en", "de"))
    assert [row["source"] for row in table.split("test")] == ["the cat", "a dog", "old man"]


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        ("a.tsv b.jsonl", "tsv jsonl"),
        ("a.tsv b.txt", "tsv moses"),
        ("a.en b.csv.gz", "moses csv"),
        ("a.tmx b.po", "tmx po"),
    ],
)
def test_different_formats_are_refused(names: str, kinds: str, tmp_path: Path) -> None:
    paths = [str(write(tmp_path, name, "a\tb\n")) for name in names.split()]
    first, second = kinds.split()
    fails(paths, f"{paths[0]} is of the format {first}", f"{paths[1]} of {second}")


@pytest.mark.parametrize("names", ["a.en b.de", "a.txt b.txt", "a.src.gz b.tgt.gz", "a.txt b.de"])
def test_plain_text_stays_line_aligned(names: str) -> None:
    assert detect_format(list(map(Path, names.split()))) == "moses"


def test_bad_lines_are_counted_for_each_table(tmp_path: Path) -> None:
    """A fifth of bad lines in one file is an error, however many good ones another has."""
    good = write(tmp_path, "good.tsv", "source\ttarget\n" + "a\tb\n" * 5000)
    bad = write(tmp_path, "bad.tsv", "source\ttarget\n" + "a\n" * 1100)
    options: dict[str, Any] = {"languages": ["en", "de"]}
    assert "bad.tsv" in fails([str(good), str(bad)], "malformed", **options)
