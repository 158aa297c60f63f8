from __future__ import annotations

from typing import Any

import pytest
from conftest import make_pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_xlsr.data.tokenization import train_tokenizer, trim_vocabulary

TEXTS = [pair[side] for pair in make_pairs(200) for side in ("source", "target")]
KEPT = ["one red bird", "house of stone"]


def unigram() -> Any:
    return train_tokenizer(TEXTS, vocab_size=120, algorithm="unigram", frame=True)


def wordpiece() -> Any:
    """As BERT has it: padding first, the other special pieces further down, `##` inside words."""
    letters = sorted(set("".join(TEXTS)) - {" "})
    words = ["one", "red", "bird", "house", "of", "st", "##one", "##use", "ho", "fish", "##ing"]
    names = ["[PAD]", "[unused]", *words, "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters)]
    vocabulary = {name: number for number, name in enumerate(names)}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=32, **special)


WHOLE = {"unigram": unigram(), "wordpiece": wordpiece()}


@pytest.mark.parametrize("kind", WHOLE)
def test_the_texts_are_cut_as_before_and_the_rest_is_gone(kind: str) -> None:
    whole = WHOLE[kind]
    small, pieces = trim_vocabulary(whole, KEPT)
    assert len(small) == len(pieces) < len(whole)
    for text in KEPT:
        before, after = whole(text)["input_ids"], small(text)["input_ids"]
        assert [pieces[piece] for piece in after] == before  # special ones included
        assert small.decode(after, skip_special_tokens=True) == whole.decode(before, skip_special_tokens=True)
    assert whole.convert_ids_to_tokens(pieces) == small.convert_ids_to_tokens(range(len(small)))
    assert "##ing" not in small.get_vocab() and "fish" not in small.get_vocab()


@pytest.mark.parametrize("kind", WHOLE)
@settings(max_examples=40, deadline=None)
@given(words=st.lists(st.sampled_from(sorted({word for text in TEXTS for word in text.split()})), min_size=1))
def test_any_text_that_was_counted_is_cut_as_before(kind: str, words: list[str]) -> None:
    whole, text = WHOLE[kind], " ".join(words)
    small, pieces = trim_vocabulary(whole, [text])
    assert [pieces[piece] for piece in small(text)["input_ids"]] == whole(text)["input_ids"]


@pytest.mark.parametrize("kind", WHOLE)
def test_other_words_of_the_same_letters_are_spelt(kind: str) -> None:
    small, _ = trim_vocabulary(WHOLE[kind], KEPT)
    ids = small("bride under rust")["input_ids"]  # letters of what was kept, none of its words
    assert small.unk_token_id not in ids and len(ids) > 5


@pytest.mark.parametrize("kind", WHOLE)
def test_special_pieces_stay_and_padding_keeps_its_id(kind: str, tmp_path: Any) -> None:
    whole = WHOLE[kind]
    small, pieces = trim_vocabulary(whole, KEPT)
    assert small.special_tokens_map == whole.special_tokens_map
    assert small.pad_token_id == whole.pad_token_id
    assert small.model_max_length == whole.model_max_length
    for old, new in zip(whole.all_special_ids, small.all_special_ids, strict=True):
        assert pieces[new] == old
    small.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)(KEPT)["input_ids"] == small(KEPT)["input_ids"]


def test_trimming_twice_changes_nothing_more() -> None:
    small, _ = trim_vocabulary(WHOLE["unigram"], KEPT)
    again, pieces = trim_vocabulary(small, KEPT)
    assert pieces == list(range(len(small))) and again(KEPT)["input_ids"] == small(KEPT)["input_ids"]
