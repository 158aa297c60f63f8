from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running_text_helpers import neighbours, pairs_of, write_jsonl

from hf_xlsr.data.cleaning import Cleaner, Deduplicate, RemoveEvaluation
from hf_xlsr.data.corpora.bible import bible_text
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.running_text import mark_neighbours, read_running_text

# Plain text.


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_blank_lines_of_plain_text_end_documents(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "text.txt.gz"
    with gzip.open(path, "wb") as file:
        file.write(ending.join(["\ufeffone", "two", "three", " \t", "four", "", "", "five", "six"]).encode())
    assert pairs_of(str(path)) == [("one", "two"), ("two", "three"), ("five", "six")]


def test_plain_text_of_any_suffix_by_its_format(tmp_path: Path) -> None:
    path = tmp_path / "wiki.en"
    path.write_text("one\ntwo\n", "utf-8")
    assert pairs_of({"path": str(path), "format": "moses"}) == [("one", "two")]
    assert pairs_of({"path": str(path), "format": "moses", "limit": 1}) == []


def test_a_bad_line_of_plain_text_ends_a_document_and_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"one\ntwo\n\xff\nthree\nfour\n")
    quarantine = Quarantine()
    assert pairs_of(str(path), quarantine=quarantine) == [("one", "two"), ("three", "four")]
    assert quarantine.counts == {"invalid UTF-8": 1}


# One sentence a row.


def test_documents_end_where_their_name_or_language_changes(tmp_path: Path) -> None:
    cells = "a1 a2 b3 b4 a5 -6 -7 a8 a9".split()  # document and sentence
    rows = [{"text": cell[1], "document": cell[0].strip("-"), "lang": "en"} for cell in cells]
    rows[-1]["lang"] = "fr"
    assert pairs_of(write_jsonl(tmp_path / "a.jsonl", rows)) == [("1", "2"), ("3", "4")]


@pytest.mark.parametrize("suffix", ["parquet", "tsv"])
def test_a_gap_in_the_position_ends_a_document(tmp_path: Path, suffix: str) -> None:
    table = pd.DataFrame({"doc": list("aaaaaab"), "pos": [0, 1, 3, 4, 4, 3, 4], "text": list("1234567")})
    path = tmp_path / f"text.{suffix}"
    table.to_parquet(path) if suffix == "parquet" else table.to_csv(path, sep="\t", index=False)
    for columns in ({"text": "text", "document": "doc", "position": "pos"}, "text=text, document=doc,position=pos"):
        assert pairs_of({"path": str(path), "columns": columns}) == [("1", "2"), ("3", "4")]
    assert len(pairs_of({"path": str(path), "columns": {"document": "doc"}})) == 5


def test_a_position_that_is_no_number_is_a_bad_line(tmp_path: Path) -> None:
    positions = [0, "1", 2.0, "x", 4, 5, None, 7]
    rows = [{"text": str(i), "document": "a", "position": position} for i, position in enumerate(positions)]
    quarantine = Quarantine()
    pairs = pairs_of(write_jsonl(tmp_path / "a.jsonl", rows), quarantine=quarantine)
    assert pairs == [("0", "1"), ("1", "2"), ("4", "5")]
    assert quarantine.counts == {"position is not an integer": 2}


def test_rows_that_are_not_chosen_or_bad_end_a_document(tmp_path: Path) -> None:
    rows = [{"text": f"t{i}", "document": "a", "kind": "x" if i == 2 else "y"} for i in range(6)]
    rows[4]["text"] = ""
    source = {"path": write_jsonl(tmp_path / "a.jsonl", rows), "where": {"kind": "y"}}
    quarantine = Quarantine()
    assert pairs_of(source, quarantine=quarantine) == [("t0", "t1")]
    assert quarantine.counts == {"empty text": 1}
    rows[4]["text"] = "t4"
    write_jsonl(tmp_path / "a.jsonl", rows)
    assert pairs_of({**source, "limit": 4}) == [("t0", "t1"), ("t3", "t4")]


def test_a_share_of_the_documents_is_held_out(tmp_path: Path) -> None:
    rows = [{"text": f"{doc}{i}", "document": doc} for doc in "abcdefgh" for i in range(2)]
    source = {"path": write_jsonl(tmp_path / "a.jsonl", rows), "hash_key": "document", "hash_modulus": 3}
    rest, held = (pairs_of({**source, "hash_split": part}) for part in ("rest", "held"))
    assert rest and held and sorted(rest + held) == [(f"{doc}0", f"{doc}1") for doc in "abcdefgh"]


# One document a row.


def test_documents_are_split_into_sentences_of_their_language(tmp_path: Path) -> None:
    rows = [{"text": "Dr. Lee left. Why?\n\nA heading", "lang": "en"}, {"text": "下雨。走吧。", "lang": "zh"}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    expected = [("Dr. Lee left.", "Why?"), ("Why?", "A heading"), ("下雨。", "走吧。")]
    assert pairs_of(path) == expected
    assert pairs_of({"path": path, "limit": 1}) == expected[:2]
    assert pairs_of({"path": path, "columns": {"text": "text"}, "where": {"lang": "zh"}}) == expected[2:]


def test_sampled_documents_stay_whole(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"body": f"This is {i}. That was {i}."} for i in range(50)])
    pairs = pairs_of({"path": path, "columns": "text=body", "sample": 7}, seed=3)
    assert len(pairs) == 7
    assert all(first[8:] == second[9:] for first, second in pairs)


def test_a_saved_data_set_is_read_in_its_training_split(tmp_path: Path) -> None:
    parts = {
        name: datasets.Dataset.from_dict({"text": [f"I {name}. You {name}."]}) for name in ("train", "validation")
    }
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "set"))
    assert pairs_of(str(tmp_path / "set")) == [("I train.", "You train.")]
    assert pairs_of({"path": str(tmp_path / "set"), "split": "dev"}) == [("I validation.", "You validation.")]


def test_a_corpus_is_read_in_each_language(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(hub_id: str, config: str, **_: Any) -> list[dict[str, str]]:
        return [{"text": f"In {config[9:]} {i}. And then."} for i in range(3)]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = list(read_running_text({"corpus": "wikipedia", "limit": 2}, languages=["fr", "sw"]))
    assert [row["lang"] for row in rows] == ["fr"] * 4 + ["sw"] * 4
    assert rows[4]["text"] == "In sw 0." and rows[4]["place"] == rows[3]["place"] + 2
    assert len(list(read_running_text({"corpus": "wikipedia", "languages": ["sw"]}, languages=["fr"]))) == 6


# Two sentences a row.


@pytest.mark.parametrize("header", ["first\tsecond\n", "", "second\tlang\tfirst\n"])
def test_pairs_are_taken_as_they_are_and_stored_once(tmp_path: Path, header: str) -> None:
    pairs = [("A.", "B."), ("B.", "C."), ("D.", "E."), ("E.", "E.")]
    swapped = header.startswith("second")
    lines = [f"{second}\ten\t{first}\n" if swapped else f"{first}\t{second}\n" for first, second in pairs]
    path = tmp_path / "pairs.tsv"
    path.write_text(header + "".join(lines), "utf-8")
    assert pairs_of(str(path)) == pairs
    sentences = [row["text"] for row in read_running_text(str(path), languages=["en"])]
    assert sentences == ["A.", "B.", "C.", "D.", "E.", "E."]


def test_pairs_of_two_files_and_of_named_columns(tmp_path: Path) -> None:
    for name, text in (("a", "A.\nC.\n"), ("b", "B.\nD.\n")):
        (tmp_path / f"text.{name}").write_text(text)
    assert pairs_of(str(tmp_path / "text.{a,b}")) == [("A.", "B."), ("C.", "D.")]
    path = write_jsonl(tmp_path / "a.jsonl", [{"x": "A.", "y": "B.", "lang": "sw"}])
    rows = list(read_running_text({"path": path, "columns": {"first": "x", "second": "y"}}, languages=["en"]))
    assert [row["lang"] for row in rows] == ["sw", "sw"]


def test_the_bible_gives_its_own_pairs() -> None:
    expected = [(row["first"], row["second"]) for lang in ("en", "sw") for row in bible_text(lang, "dev")]
    counts = {"documents": 0, "single": 0}
    read = read_running_text({"corpus": "bible", "split": "dev"}, languages=["en", "sw"])
    rows = list(mark_neighbours(read, counts))
    assert neighbours(rows) == expected
    # John is one book: each verse is stored once.
    assert counts == {"documents": 2, "single": 0} and len(rows) == len(expected) + 2


# All forms.


_TEXTS = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), max_size=6)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(documents=_TEXTS, form=st.sampled_from(["txt", "rows", "positions", "documents", "pairs"]))
def test_pairs_are_the_neighbours_of_each_document(documents: list[list[str]], form: str, tmp_path: Path) -> None:
    named = [[f"{text.upper()}{i}x{k}." for k, text in enumerate(document)] for i, document in enumerate(documents)]
    path = tmp_path / f"{form}.{'txt' if form == 'txt' else 'jsonl'}"
    expected = [pair for document in named for pair in itertools.pairwise(document)]
    if form == "txt":
        path.write_text("\n\n".join("\n".join(document) for document in named))
    elif form == "documents":
        write_jsonl(path, ({"text": " ".join(document)} for document in named))
    elif form == "pairs":
        write_jsonl(path, ({"first": first, "second": second} for first, second in expected))
    else:
        rows: list[dict[str, Any]] = [
            {"text": text, "document": 7 if form == "positions" else i, "position": k}
            for i, document in enumerate(named)
            for k, text in enumerate(document)
        ]
        if form == "rows":
            for row in rows:
                del row["position"]
        write_jsonl(path, rows)
    assert pairs_of(str(path)) == expected


@given(documents=_TEXTS, removed=st.sets(st.sampled_from("abcdefgh")), duplicates=st.booleans())
def test_pairs_after_cleaning_are_neighbours_of_the_text(
    documents: list[list[str]], removed: set[str], duplicates: bool
) -> None:
    rows, place = [], -1
    for document in documents:
        place += 2
        for text in document:
            rows.append({"text": text, "lang": "en", "place": place})
            place += 1
    seen: set[str] = set()
    expected, stretches, single = [], 0, 0
    for document in documents:
        kept: list[str | None] = []
        for text in document:
            kept.append(None if text in removed or (text in seen and not duplicates) else text)
            seen.add(text)
        for stays, group in itertools.groupby(kept, key=lambda text: text is not None):
            stretch = list(group)
            if stays:
                expected += list(itertools.pairwise(stretch))
                stretches += len(stretch) > 1
                single += len(stretch) == 1
    steps: list[Any] = [] if duplicates else [Deduplicate()]
    counts = {"documents": 0, "single": 0}
    marked = list(mark_neighbours(Cleaner([*steps, RemoveEvaluation(removed)])(rows), counts))
    assert neighbours(marked) == expected
    assert counts == {"documents": stretches, "single": single}
    assert len(marked) - stretches == len(expected)


# Mistakes.
