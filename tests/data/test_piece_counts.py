from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tokenizer_helpers import word_tokenizer

from hf_xlsr.data.piece_counts import PieceCounts
from hf_xlsr.data.running_text import prepare_running_text
from hf_xlsr.data.texts import prepare_texts
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.utils.errors import XlsrError

LATIN = ["the cat sat", "the dog ran"] * 20


@pytest.fixture(params=[False, True])
def latin(request: pytest.FixtureRequest) -> Any:
    return train_tokenizer(LATIN, vocab_size=22, algorithm="bpe", frame=request.param)


def test_pieces_are_counted_over_all_batches(latin: Any) -> None:
    counts, texts = PieceCounts(latin, max_length=6), ["the cat", "the cat sat the dog ran"]
    ids = [counts.tokenize(texts, ["en", "fr"]) for _ in range(2)]
    whole = [latin(text)["input_ids"] for text in texts]
    assert ids[0] == ids[1] and [len(row) for row in ids[0]] == [min(len(row), 6) for row in whole]
    cut = sum(len(row) > 6 for row in whole)
    assert counts.report() == {
        "truncated_sides": 2 * cut,
        "pieces": 2 * sum(map(len, ids[0])),
        "unknown_pieces": 0,
    }


def test_special_pieces_do_not_hide_that_a_script_is_unknown(latin: Any) -> None:
    counts = PieceCounts(latin, max_length=50)
    counts.tokenize(["да", "the cat"], ["ru", "en"])  # a few odd rows are no language
    with pytest.raises(
        XlsrError, match=r"sentences in 'ru', \d\d% are unknown to .*; take a tokenizer of the language"
    ):
        for _ in range(400):
            counts.tokenize(["да", "the cat"], ["ru", "en"])


def test_some_unknown_letters_are_told_and_borne(latin: Any, caplog: pytest.LogCaptureFixture) -> None:
    counts = PieceCounts(latin, max_length=90)
    counts.tokenize(["the cat sat the dog ran ж ж ж"], ["en"])
    with caplog.at_level(logging.WARNING):
        assert counts.report()["unknown_pieces"] == 3
    assert [record.getMessage() for record in caplog.records][-1].startswith("of the pieces of sentences in 'en'")


def test_a_tokenizer_of_bytes_knows_everything() -> None:
    class Bytes:
        unk_token_id = None

        def __call__(self, texts: list[str], **_: Any) -> dict[str, Any]:
            return {"input_ids": [list(text.encode()) for text in texts]}

        def num_special_tokens_to_add(self) -> int:
            return 0

    counts = PieceCounts({"en": Bytes(), "ru": Bytes()}, max_length=50)
    counts.tokenize(["да"], ["ru"])
    assert counts.report() == {"truncated_sides": 0, "pieces": 4, "unknown_pieces": 0}


def test_a_frame_of_the_unknown_piece_is_no_unknown_text() -> None:
    tokenizer = word_tokenizer(["one", "two"])
    tokenizer.unk_token = tokenizer.sep_token
    counts = PieceCounts(tokenizer, max_length=4)
    for _ in range(300):
        assert counts.tokenize(["one two", "two two one"], ["en", "en"])[0][-1] == tokenizer.unk_token_id
    assert counts.report()["unknown_pieces"] == 0


def test_sentences_of_a_script_that_the_tokenizer_lacks_are_refused(latin: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"да нет {i}\nнет да {i}\n\n" for i in range(200)), "utf-8")
    common: dict[str, Any] = {"languages": ["ru"], "tokenizers": latin, "evaluation_texts": []}
    with pytest.raises(XlsrError, match="sentences in 'ru'"):
        prepare_texts(str(tmp_path / "a.txt"), folder=tmp_path / "texts", **common)
    with pytest.raises(XlsrError, match="sentences in 'ru'"):
        prepare_running_text(str(tmp_path / "a.txt"), folder=tmp_path / "running", **common)


def test_pairs_in_a_language_that_the_running_text_lacks_are_refused(tmp_path: Path) -> None:
    text, pairs = tmp_path / "en.txt", tmp_path / "pairs.tsv"
    text.write_text("".join(f"the cat sat {i}\nthe dog ran {i}\n\n" for i in range(20)), "utf-8")
    pairs.write_text("".join(f"the cat {i}\tкот {i} тут\n" for i in range(300)), "utf-8")
    (tmp_path / "mine.yaml").write_text(
        f"method: cmlm\nlanguages: [en, ru]\ntokenizer: {{vocab_size: 30, algorithm: bpe}}\n"
        f"data: {{text: {{path: {text}, languages: [en]}}, train: {{path: {pairs}}}, cleaning: []}}\n"
        f"model: {{encoder: {{model_type: bert, hidden_size: 8, num_hidden_layers: 1, num_attention_heads: 2}}}}\n"
        f"output_dir: {tmp_path / 'run'}\n",
        "utf-8",
    )
    (recipe,) = load_runs(str(tmp_path / "mine.yaml"))
    with pytest.raises(XlsrError, match="sentences in 'ru'"):
        train_recipe(recipe)
