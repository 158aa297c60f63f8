from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tokenizer_helpers import word_tokenizer

from hf_xlsr.data.pairs import prepare_texts
from hf_xlsr.data.preparation import TokenCounts
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.utils.errors import XlsrError

WORDS = ["one", "two", "three", "four", "five"]
LATIN = ["the cat sat", "the dog ran"] * 20


def tokenize_texts(texts: list[str], tokenizers: Any, max_length: int) -> tuple[list[list[int]], int]:
    counts = TokenCounts(tokenizers, max_length)
    return counts.tokenize(texts, ["en"] * len(texts)), counts.report()["num_truncated"]


@pytest.fixture(params=[False, True])
def latin(request: pytest.FixtureRequest) -> Any:
    return train_tokenizer(LATIN, vocab_size=22, algorithm="bpe", frame=request.param)


@pytest.mark.parametrize("max_length", range(2, 9))
def test_truncated_text_keeps_its_special_tokens(max_length: int) -> None:
    texts = [" ".join(WORDS[:count]) for count in range(6)]
    ids, truncated = tokenize_texts(texts, {"en": word_tokenizer(WORDS)}, max_length)
    assert [len(row) for row in ids] == [min(count + 2, max_length) for count in range(6)]
    assert {row[-1] for row in ids} == {3}
    assert truncated == sum(count + 2 > max_length for count in range(6))


@pytest.mark.parametrize("max_length", [1, 5, 32])
def test_truncation_without_special_tokens(tokenizer: Any, pairs: list[dict[str, str]], max_length: int) -> None:
    texts = [pair["source"] for pair in pairs]
    ids, truncated = tokenize_texts(texts, tokenizer, max_length)
    whole = tokenizer(texts)["input_ids"]
    assert ids == [row[:max_length] for row in whole]
    assert truncated == sum(len(row) > max_length for row in whole)


def test_counts_add_up_over_batches(latin: Any) -> None:
    counts, texts = TokenCounts(latin, max_length=6), ["the cat", "the cat sat the dog ran"]
    ids = [counts.tokenize(texts, ["en", "fr"]) for _ in range(2)]
    whole = [latin(text)["input_ids"] for text in texts]
    assert ids[0] == ids[1] and [len(row) for row in ids[0]] == [min(len(row), 6) for row in whole]
    truncated = sum(len(row) > 6 for row in whole)
    assert counts.report() == {
        "num_truncated": 2 * truncated,
        "tokens": 2 * sum(map(len, ids[0])),
        "unknown_tokens": 0,
    }


def test_unknown_script_is_an_error(latin: Any, tmp_path: Path) -> None:
    counts = TokenCounts(latin, max_length=50)
    counts.tokenize(["да", "the cat"], ["ru", "en"])  # a few rows are no evidence
    with pytest.raises(XlsrError, match="'ru'"):
        for _ in range(400):
            counts.tokenize(["да", "the cat"], ["ru", "en"])
    (tmp_path / "a.txt").write_text("".join(f"да нет {i}\nнет да {i}\n" for i in range(200)), "utf-8")
    common: dict[str, Any] = {"languages": ["ru"], "tokenizers": latin, "evaluation_texts": []}
    with pytest.raises(XlsrError, match="'ru'"):
        prepare_texts(str(tmp_path / "a.txt"), folder=tmp_path / "texts", **common)


def test_few_unknown_tokens_are_a_warning(latin: Any, caplog: pytest.LogCaptureFixture) -> None:
    counts = TokenCounts(latin, max_length=90)
    counts.tokenize(["the cat sat the dog ran ж ж ж"], ["en"])
    with caplog.at_level(logging.WARNING):
        assert counts.report()["unknown_tokens"] == 3
    assert "'en'" in caplog.text


def test_byte_tokenizer_has_no_unknown_tokens() -> None:
    class Bytes:
        unk_token_id = None

        def __call__(self, texts: list[str], **_: Any) -> dict[str, Any]:
            return {"input_ids": [list(text.encode()) for text in texts]}

    counts = TokenCounts({"en": Bytes(), "ru": Bytes()}, max_length=50)
    counts.tokenize(["да"], ["ru"])
    assert counts.report() == {"num_truncated": 0, "tokens": 4, "unknown_tokens": 0}


def test_framing_by_the_unknown_token_is_not_counted() -> None:
    tokenizer = word_tokenizer(["one", "two"])
    tokenizer.unk_token = tokenizer.sep_token
    counts = TokenCounts(tokenizer, max_length=4)
    for _ in range(300):
        assert counts.tokenize(["one two", "two two one"], ["en", "en"])[0][-1] == tokenizer.unk_token_id
    assert counts.report()["unknown_tokens"] == 0
