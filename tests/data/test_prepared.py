from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from tokenizer_helpers import word_tokenizer

from hf_xlsr.data.piece_counts import tokenize_texts
from hf_xlsr.data.prepared import PreparedPairs, store_pairs, text_identities, tokenize_pairs
from hf_xlsr.data.seen import hash64
from hf_xlsr.utils.errors import XlsrError

WORDS = ["one", "two", "three", "four", "five"]


def rows(*pairs: tuple[str, str, str, str]) -> Dataset:
    return Dataset.from_list(
        [dict(zip(("source_lang", "target_lang", "source", "target"), pair, strict=True)) for pair in pairs]
    )


@pytest.fixture
def tokenizers() -> dict[str, Any]:
    """The same words under two numberings: 4 and on in English, 0 and on in the others, which share one tokenizer."""
    other = word_tokenizer(WORDS, special_first=False)
    return {"en": word_tokenizer(WORDS), "de": other, "fr": other}


def test_each_side_by_the_tokenizer_of_its_language(tokenizers: dict[str, Any]) -> None:
    pairs = rows(("en", "de", "one two", "two"), ("de", "fr", "one", "five"), ("en", "de", "four", "one two three"))
    tokenised, counts = tokenize_pairs(pairs, tokenizers)
    # CLS and SEP are 2 and 3 in English, 7 and 8 behind the five words of the others.
    assert tokenised["source_ids"][:] == [[2, 4, 5, 3], [7, 0, 8], [2, 7, 3]]
    assert tokenised["target_ids"][:] == [[7, 1, 8], [7, 4, 8], [7, 0, 1, 2, 8]]
    assert tokenised["length"][:] == [4, 3, 5] and tokenised["group"][:] == [1, 0, 1]
    assert counts == {
        "pairs": 3,
        "truncated_sides": 0,
        "pieces": 21,
        "unknown_pieces": 0,
        "language_pairs": [["de", "fr"], ["en", "de"]],
    }


def test_a_cut_text_keeps_its_last_special_token_and_is_counted(tokenizers: dict[str, Any]) -> None:
    pairs = rows(("en", "de", "one two three", "one two"), ("en", "de", "one two", "one two three four five"))
    tokenised, counts = tokenize_pairs(pairs, tokenizers, max_length=4)
    assert tokenised["source_ids"][:] == [[2, 4, 5, 3], [2, 4, 5, 3]]
    assert tokenised["target_ids"][:] == [[7, 0, 1, 8], [7, 0, 1, 8]]
    assert counts["truncated_sides"] == 2  # a text of just four pieces is not one


@pytest.mark.parametrize("max_length", [1, 3, 5, 32])
def test_without_special_tokens_a_cut_is_a_slice(tokenizer: Any, pairs: list[dict[str, str]], max_length: int) -> None:
    texts = [pair["source"] for pair in pairs]
    ids, truncated = tokenize_texts(texts, ["en"] * len(texts), tokenizer, max_length)
    whole = tokenizer(texts)["input_ids"]
    assert ids == [row[:max_length] for row in whole]
    assert truncated == sum(len(row) > max_length for row in whole)


def test_cut_texts_are_told_from_whole_ones(tokenizers: dict[str, Any]) -> None:
    texts = [" ".join(WORDS[:count]) for count in range(6)]
    for max_length in range(2, 9):
        ids, truncated = tokenize_texts(texts, ["en"] * 6, tokenizers, max_length)
        assert [len(row) for row in ids] == [min(count + 2, max_length) for count in range(6)]
        assert {row[-1] for row in ids} == {3}
        assert truncated == sum(count + 2 > max_length for count in range(6))


def test_a_language_without_tokenizer_is_refused(tokenizers: dict[str, Any]) -> None:
    with pytest.raises(XlsrError, match="also in 'it', which has no tokenizer; known are de, en, fr"):
        tokenize_pairs(rows(("en", "it", "one", "two")), tokenizers)


def test_identities_of_texts_are_their_signed_hashes() -> None:
    texts = [f"text {number}" for number in range(50)]
    found = text_identities(texts)
    assert str(found.dtype) == "int64" and found.min() < 0 < found.max()
    assert [int(value) % 2**64 for value in found] == [hash64(text) for text in texts]


def test_pairs_carry_texts_and_languages(tokenizers: dict[str, Any], tmp_path: Path) -> None:
    stored = store_pairs(
        [
            {"source": "one", "target": "two", "source_lang": "en", "target_lang": "de", "more": 1},
            {"source": "two", "target": "one", "source_lang": "de", "target_lang": "fr"},
            {"source": "five", "target": "two", "source_lang": "en", "target_lang": "de"},
        ],
        tmp_path,
    )
    tokenised, counts = tokenize_pairs(stored, tokenizers)
    first, second, third = PreparedPairs(tokenised, counts["language_pairs"]).__getitems__([(7, 0), (7, 1), (7, 2)])
    assert first == {
        "source_ids": [2, 4, 3],
        "target_ids": [7, 1, 8],
        "source_text": int(text_identities(["one"])[0]),
        "target_text": int(text_identities(["two"])[0]),
        "index": 0,
        "epoch": 7,
        "source_lang": "en",
        "target_lang": "de",
    }
    assert (second["source_lang"], second["target_lang"]) == ("de", "fr")
    assert first["target_text"] == third["target_text"] == second["source_text"]
    assert first["source_text"] == second["target_text"] != third["source_text"]
    assert "source_lang" not in PreparedPairs(tokenised)[0, 0]


def test_data_of_an_older_version_is_refused() -> None:
    old = Dataset.from_dict({"source_ids": [[4]], "target_ids": [[5]], "length": [1], "group": [0]})
    with pytest.raises(XlsrError, match="prepared by an older version; start anew with --overwrite true"):
        PreparedPairs(old)
