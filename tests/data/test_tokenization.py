from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hf_xlsr.data.tokenization import punctuation_ids, smoothed_shares, smoothed_text, train_tokenizer

TEXTS = ["The cat sat, quietly.", "Le chat s'assit, sans bruit.", "Ein Hund bellt laut!"] * 60


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def trained(request: pytest.FixtureRequest) -> Any:
    return train_tokenizer(TEXTS, vocab_size=45, algorithm=request.param)


def test_round_trip_through_auto_tokenizer(trained: Any, tmp_path: Path) -> None:
    trained.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "the cat barks, laut!"
    assert loaded(text)["input_ids"] == trained(text)["input_ids"]
    assert (loaded.pad_token_id, loaded.unk_token_id, loaded.mask_token_id) == (0, 1, 2)
    assert set(loaded(text)) == {"input_ids", "attention_mask"}


def test_no_boundary_tokens_and_lower_case(trained: Any) -> None:
    assert trained("THE CAT")["input_ids"] == trained("the cat")["input_ids"]
    assert not set(trained("the cat")["input_ids"]) & {0, 1, 2}


def test_decoding_gives_the_text_back(trained: Any) -> None:
    assert trained.decode(trained("the cat sat quietly")["input_ids"]) == "the cat sat quietly"


def test_punctuation_stands_alone(trained: Any) -> None:
    pieces = trained.convert_ids_to_tokens(trained("the cat, sat.")["input_ids"])
    assert "," in pieces and "." in pieces
    assert "▁" not in pieces[1:]  # the mark of a space is a symbol to Unicode, and must stay with its word
    avoided = punctuation_ids(trained)
    assert avoided[trained.convert_tokens_to_ids(",")] and avoided[trained.mask_token_id]
    assert not avoided[trained("cat")["input_ids"][-1]]


def test_case_is_kept_on_request() -> None:
    cased = train_tokenizer(TEXTS, vocab_size=45, algorithm="bpe", lowercase=False)
    assert cased("The")["input_ids"] != cased("the")["input_ids"]


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 10**6), min_size=1), st.floats(0, 1))
def test_smoothing_keeps_order_and_sums_to_one(sizes: dict[str, int], exponent: float) -> None:
    shares = smoothed_shares(sizes, exponent)
    assert abs(sum(shares.values()) - 1) < 1e-9
    order = sorted(sizes, key=lambda name: sizes[name])
    assert all(shares[a] <= shares[b] + 1e-12 for a, b in zip(order, order[1:], strict=False))


def test_small_languages_are_repeated_and_large_ones_thinned() -> None:
    sizes = {"en": 10_000, "sw": 100}
    texts = [(name, name) for name, size in sizes.items() for _ in range(size)]
    drawn = list(smoothed_text(texts, sizes, exponent=0.3, seed=1))
    assert abs(drawn.count("sw") / len(drawn) - smoothed_shares(sizes)["sw"]) < 0.02
    assert abs(len(drawn) - 10_100) < 200


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=200),
    st.floats(0, 1),
    st.integers(1, 300),
    st.integers(0, 9),
)
def test_one_pass_draws_what_a_pass_for_each_language_draws(
    languages: list[str], exponent: float, limit: int, seed: int
) -> None:
    rows = [(language, f"{language} {place}") for place, language in enumerate(languages)]
    sizes = {language: languages.count(language) for language in sorted(set(languages))}
    total, random, expected = min(len(rows), limit), np.random.default_rng(seed), list[str]()
    for name, share in smoothed_shares(sizes, exponent).items():
        own = [text for language, text in rows if language == name]
        whole, rest = divmod(share * total, sizes[name])
        expected += own * int(whole) + [text for text in own if random.random() < rest / sizes[name]]
    passes = iter([rows])
    drawn = smoothed_text((pair for pair in next(passes)), sizes, exponent=exponent, limit=limit, seed=seed)
    assert list(drawn) == expected


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_the_same_text_gives_the_same_tokenizer(algorithm: str) -> None:
    # Words that are as frequent as others, and letters that occur once: what the trainer's hash tables leave open.
    words = ["".join(letters) for letters in itertools.product("bdgkl", "aeiou", "mnrst", "aeiou")]
    texts = [" ".join(words[start : start + 5]) for start in range(0, len(words), 5)] + ["q w x z ü ô â ß ñ ç"]
    vocabularies = {
        train_tokenizer(texts, vocab_size=120, algorithm=algorithm).backend_tokenizer.to_str() for _ in range(8)
    }
    assert len(vocabularies) == 1
