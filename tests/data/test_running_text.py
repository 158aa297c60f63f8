from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from running_text_helpers import pairs_of, write_jsonl
from tokenizer_helpers import word_tokenizer

from hf_xlsr.data.running_text import PreparedRunningText, prepare_running_text
from hf_xlsr.utils.errors import XlsrError

WORDS = "one two three four five six seven eight nine ten red blue un deux trois".split()


PAGE = Path(__file__).resolve().parents[2] / "docs" / "running-text.md"


BLOCKS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)


@pytest.fixture
def words() -> Any:
    return word_tokenizer(WORDS)


@pytest.fixture
def story(tmp_path: Path) -> str:
    path = tmp_path / "story.txt"
    path.write_text("one\ntwo\nthree\nfour\n\nfive\n\nsix\nseven seven seven\n", "utf-8")
    return str(path)


def prepare(source: Any, tmp_path: Path, tokenizers: Any, **options: Any) -> PreparedRunningText:
    settings: dict[str, Any] = {"languages": ["en"], "evaluation_texts": [], "cleaning": ["normalize"]}
    return prepare_running_text(source, tokenizers=tokenizers, folder=tmp_path / "text", **{**settings, **options})


def decoded(text: PreparedRunningText, tokenizer: Any) -> list[tuple[str, str]]:
    pairs = text.__getitems__([(0, index) for index in range(len(text))])
    return [
        tuple(tokenizer.decode(pair[side], skip_special_tokens=True) for side in ("first_ids", "second_ids"))
        for pair in pairs
    ]


# Prepared for training.


def test_pairs_counts_and_lengths_by_hand(story: str, words: Any, tmp_path: Path) -> None:
    french = write_jsonl(tmp_path / "fr.jsonl", [{"text": "un. deux un. trois", "lang": "fr"}])
    text = prepare(
        [story, french],
        tmp_path,
        words,
        languages=["en", "fr"],
        evaluation_texts=["Three!"],
        cleaning=["normalize", "drop_identical", "ratio"],
        max_length=4,
    )
    # Each sentence has [CLS] before and [SEP] behind it; full stops are unknown words.
    assert decoded(text, words) == [("one", "two"), ("six", "seven seven"), ("un", "deux un"), ("deux un", "trois")]
    assert text.lengths.tolist() == [3, 4, 4, 4] and text.groups.tolist() == [0, 0, 1, 1]
    assert text.languages == ["en", "fr"] and len(text) == 4 and text.tokenizer is words
    report = text.report
    assert {name: report[name] for name in ("sentences", "pairs", "documents", "single")} == {
        "sentences": 7,
        "pairs": 4,
        "documents": 3,
        "single": 2,
    }
    assert report["num_truncated"] == 2 and report["tokens"] == 3 + 3 + 3 + 4 + 4 + 4 + 3
    assert report["cleaning"] == {
        "normalize": {"in": 10, "out": 10, "changed": 0},
        "remove_evaluation": {"in": 10, "out": 9, "changed": 0},
    }
    assert text[5, 3]["index"] == 3 and text[5, 3]["epoch"] == 5 and text[5, 3]["lang"] == "fr"
    assert [pair["index"] for pair in text.__getitems__([(1, 2), (1, 0), (1, 2)])] == [2, 0, 2]


def test_duplicate_leaves_a_gap(tmp_path: Path, words: Any) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n\nthree\ntwo\nfour\nfive\n")
    text = prepare(str(path), tmp_path, words, cleaning=["deduplicate"])
    assert decoded(text, words) == [("one", "two"), ("four", "five")]
    assert text.report["single"] == 1


def test_trained_tokenizer_is_kept(story: str, words: Any, tmp_path: Path) -> None:
    options = {"vocab_size": 30, "algorithm": "bpe", "smoothing": 0.3, "path": None}
    text = prepare(story, tmp_path, options, max_length=50)
    assert text.report["vocab_size"] == len(text.tokenizer) == 30
    assert text.tokenizer.model_max_length == 50
    assert decoded(text, text.tokenizer)[0] == ("one", "two")
    again = prepare(story, tmp_path, options, max_length=50)
    assert again.tokenizer.get_vocab() == text.tokenizer.get_vocab()
    assert decoded(again, again.tokenizer) == decoded(text, text.tokenizer)
    with pytest.raises(XlsrError, match="vocabulary"):
        prepare(story, tmp_path, words)


def test_given_tokenizer_is_kept(story: str, words: Any, tmp_path: Path) -> None:
    words.save_pretrained(tmp_path / "words")
    text = prepare(story, tmp_path, {"path": str(tmp_path / "words"), "vocab_size": 3})
    assert text.tokenizer.get_vocab() == words.get_vocab()
    assert (tmp_path / "text" / "tokenizer" / "tokenizer.json").is_file()


def test_tokenizer_per_language(story: str, tmp_path: Path) -> None:
    french = write_jsonl(tmp_path / "fr.jsonl", [{"text": "un. deux"}])
    tokenizers = {"en": word_tokenizer(WORDS), "fr": word_tokenizer(["deux", "un"])}
    text = prepare([story, {"path": french, "languages": ["fr"]}], tmp_path, tokenizers, languages=["en", "fr"])
    assert text.tokenizer is None
    assert text[0, len(text) - 1]["second_ids"] == tokenizers["fr"]("deux")["input_ids"]
    assert text[0, 0]["first_ids"] == tokenizers["en"]("one")["input_ids"]


def test_many_sentences_without_neighbours_are_a_warning(
    words: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": word, "doc": 1} for word in WORDS] + [{"text": "Yes. No."}])
    prepare({"path": path}, tmp_path, words)
    assert "document" in caplog.text


@pytest.mark.skipif(not os.environ.get("HF_XLSR_DATA"), reason="needs the folder that HF_XLSR_DATA names")
@pytest.mark.parametrize("language, orders", [("it", ["doc", "run"]), ("tr", ["doc", "run", "none"])])
def test_real_documents(language: str, orders: list[str]) -> None:
    columns = {"text": "text", "document": "doc", "position": "pos", "lang": "lang"}
    where = {"split": "train", "order": orders}
    path = f"$HF_XLSR_DATA/text/{language}.parquet"
    source = {"path": path, "columns": columns, "where": where}
    table = pd.read_parquet(os.path.expandvars(path))
    table = table[(table.split == "train") & table.order.isin(orders)]
    expected = [
        pair
        for _, document in table.groupby(["source", "doc"], sort=False)
        for pair in itertools.pairwise(document.sort_values("pos").text)
    ]
    assert len(expected) > 3000
    # Names that several sources use.
    assert (table.groupby("doc").source.nunique().max() > 1) == (language == "tr")
    assert pairs_of(source, [language]) == expected


@pytest.mark.parametrize("block, output", BLOCKS, ids=["sentences", "documents", "pairs", "training"])
def test_block_of_the_docs_runs(
    block: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(PAGE), "exec"), {"__name__": "block"})
    assert capsys.readouterr().out == output
