from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_helpers import framed_tokenizer, word_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertTokenizer,
    ByT5Tokenizer,
    PreTrainedTokenizerFast,
    T5Tokenizer,
    XLMRobertaTokenizer,
)

from hf_xlsr.data.tokenization import (
    load_tokenizer,
    punctuation_ids,
    smoothed_shares,
    smoothed_text,
    tokenizer_hash,
    train_tokenizer,
    trim_vocabulary,
)
from hf_xlsr.utils.errors import XlsrError

TEXTS = ["The cat sat, quietly.", "Le chat s'assit, sans bruit.", "Ein Hund bellt laut!"] * 60


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def trained(request: pytest.FixtureRequest) -> Any:
    return train_tokenizer(TEXTS, vocab_size=70, algorithm=request.param)


def test_round_trip_through_auto_tokenizer(trained: Any, tmp_path: Path) -> None:
    trained.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)

    encoding = loaded("the cat barks, laut!")
    assert encoding.keys() == {"input_ids", "attention_mask"}
    assert encoding["input_ids"] == trained("the cat barks, laut!")["input_ids"]
    assert (loaded.pad_token_id, loaded.unk_token_id, loaded.mask_token_id) == (0, 1, 2)


def test_trained_tokenizer_lowercases(trained: Any) -> None:
    ids = trained("the cat sat quietly")["input_ids"]
    assert trained("THE CAT sat quietly")["input_ids"] == ids
    assert trained.decode(ids) == "the cat sat quietly"
    assert trained.mask_token_id not in trained("the <MASK>")["input_ids"]


def test_punctuation_is_a_token_of_its_own(trained: Any) -> None:
    tokens = trained.convert_ids_to_tokens(trained("the cat, sat.")["input_ids"])
    assert {",", "."} <= set(tokens)
    assert "▁" not in tokens[1:]  # the mark of a space is a symbol in Unicode, and stays with its word

    is_punctuation = punctuation_ids(trained)
    assert is_punctuation[trained.convert_tokens_to_ids(",")]
    assert is_punctuation[trained.mask_token_id]
    assert not is_punctuation[trained("cat")["input_ids"][-1]]


@settings(max_examples=30)
@given(
    languages=st.lists(st.sampled_from("abcd"), min_size=1, max_size=200),
    exponent=st.floats(0, 1),
    limit=st.integers(1, 300),
    seed=st.integers(0, 9),
)
def test_smoothed_text_equals_one_pass_per_language(
    languages: list[str], exponent: float, limit: int, seed: int
) -> None:
    rows = [(language, f"{language} {number}") for number, language in enumerate(languages)]
    sizes = dict(sorted(Counter(languages).items()))
    total = min(len(rows), limit)
    random = np.random.default_rng(seed)
    expected = []
    for name, share in smoothed_shares(sizes, exponent).items():
        size = sizes[name]
        texts = [text for language, text in rows if language == name]
        passes, rest = divmod(share * total, size)
        expected += texts * int(passes)
        expected += [text for text in texts if random.random() < rest / size]

    drawn = smoothed_text(iter(rows), sizes, exponent=exponent, limit=limit, seed=seed)
    assert list(drawn) == expected


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_same_text_gives_same_tokenizer(algorithm: str) -> None:
    # Words of equal frequency and letters that occur once, whose order the trainer leaves to hash tables.
    words = list(map("".join, itertools.product("bdgkl", "aeiou", "mnrst", "aeiou")))
    texts = [" ".join(words[start : start + 5]) for start in range(0, len(words), 5)]
    texts.append("q w x z ü ô â ß ñ ç")

    vocabularies = set()
    for _ in range(8):
        tokenizer = train_tokenizer(texts, vocab_size=120, algorithm=algorithm)
        assert len(tokenizer) <= 120
        vocabularies.add(tokenizer.backend_tokenizer.to_str())
    assert len(vocabularies) == 1


# Trimmed vocabularies.

PAIRS = [text for pair in make_pairs(200) for text in (pair["source"], pair["target"])]
WORDS = sorted(set(" ".join(PAIRS).split()))
FEW_TEXTS = ["one red bird", "house of stone"]
SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def unigram() -> Any:
    return train_tokenizer(PAIRS, vocab_size=120, algorithm="unigram", frame=True)


def wordpiece() -> Any:
    """As in BERT: padding first, the other special tokens further down, `##` inside words."""
    names = "[PAD] [unused] one red bird house of st ##one ##use ho fish ##ing [UNK] [CLS] [SEP] [MASK]".split()
    for letter in sorted(set("".join(WORDS))):
        names += [letter, f"##{letter}"]
    vocabulary = {name: number for number, name in enumerate(names)}

    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    return PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=32, **SPECIAL)


def byte_level(first: int = 0) -> Any:
    """As in ModernBERT: the symbols of a text are its bytes. With `first` of 1 padding is the last token."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=list(SPECIAL.values())[first:],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(PAIRS, trainer)
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(name, inner.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=32, **SPECIAL)


WHOLE = {"unigram": unigram(), "wordpiece": wordpiece(), "byte_level": byte_level(), "padding_last": byte_level(1)}


def text_of(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", WHOLE)
@settings(max_examples=40)
@given(words=st.lists(st.sampled_from(WORDS), min_size=1))
def test_any_text_is_split_as_before(kind: str, words: list[str]) -> None:
    whole = WHOLE[kind]
    text = " ".join(words)
    small, old_ids = trim_vocabulary(whole, [text])

    before = whole(text)["input_ids"]
    after = small(text)["input_ids"]
    assert [old_ids[token] for token in after] == before
    assert text_of(small, after) == text_of(whole, before)
    assert whole.convert_ids_to_tokens(old_ids) == small.convert_ids_to_tokens(range(len(small)))


@pytest.mark.parametrize("kind", WHOLE)
def test_only_bytes_spell_other_letters(kind: str) -> None:
    small, _ = trim_vocabulary(WHOLE[kind], FEW_TEXTS)
    has_bytes = kind in ("byte_level", "padding_last")
    for letter in set("".join(WORDS)) - set("".join(FEW_TEXTS)):
        is_spelt = text_of(small, small(letter)["input_ids"]) == letter
        assert is_spelt == has_bytes


@pytest.mark.parametrize("kind", WHOLE)
def test_frequent_tokens_are_kept(kind: str) -> None:
    whole = WHOLE[kind]
    texts = [*FEW_TEXTS, *["red bird"] * 9]
    largest, _ = trim_vocabulary(whole, texts)
    vocab_size = len(largest) - 2
    small, old_ids = trim_vocabulary(whole, texts, vocab_size=vocab_size)

    assert len(small) == len(old_ids)
    assert len(small) <= vocab_size
    assert small.tokenize("red bird") == whole.tokenize("red bird")
    for text in FEW_TEXTS:  # what is rarer is spelt
        ids = small(text)["input_ids"]
        assert small.unk_token_id not in ids
        assert re.sub("##| ", "", text_of(small, ids)) == text.replace(" ", "")


@pytest.mark.parametrize("kind", WHOLE)
def test_special_tokens_are_kept(kind: str, tmp_path: Any) -> None:
    whole = WHOLE[kind]
    small, old_ids = trim_vocabulary(whole, FEW_TEXTS)

    assert small.special_tokens_map == whole.special_tokens_map
    assert small.pad_token_id == (len(small) - 1 if kind == "padding_last" else whole.pad_token_id)
    assert small.model_max_length == whole.model_max_length
    assert [old_ids[new] for new in small.all_special_ids] == whole.all_special_ids

    small.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)(FEW_TEXTS)["input_ids"] == small(FEW_TEXTS)["input_ids"]


SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


def library_tokenizer(kind: str) -> Any:
    """A small tokenizer of one of the classes of transformers, which have a layout of their own."""
    trained = train_tokenizer(TEXTS, vocab_size=70, lowercase=False)
    names = trained.convert_ids_to_tokens(list(range(3, len(trained))))
    if kind == "bert":
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *names, *(f"##{name}" for name in names)]
        return BertTokenizer(vocab={word: number for number, word in enumerate(dict.fromkeys(words))})
    scores = [(name, -float(number)) for number, name in enumerate(names)]
    if kind == "t5":
        special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
        return T5Tokenizer(vocab=[*special, *scores], extra_ids=2)
    return XLMRobertaTokenizer(vocab=[*((name, 0.0) for name in SPECIAL), *scores, ("<mask>", 0.0)])


@pytest.mark.parametrize("kind", ["bert", "t5", "xlm-roberta"])
def test_class_and_options_of_a_trimmed_tokenizer(kind: str, tmp_path: Path) -> None:
    library_tokenizer(kind).save_pretrained(tmp_path / "whole")
    whole = AutoTokenizer.from_pretrained(tmp_path / "whole", padding_side="left", model_max_length=9)

    small, old_ids = trim_vocabulary(whole, TEXTS[:1])
    small.save_pretrained(tmp_path / "small")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "small")

    assert type(loaded) is type(whole)
    assert len(loaded) == len(old_ids) < len(whole)
    for attribute in ("padding_side", "model_max_length", "model_input_names", "all_special_tokens"):
        assert getattr(loaded, attribute) == getattr(whole, attribute)
    for tokenizer in (small, loaded):
        ids = tokenizer(TEXTS[0])["input_ids"]
        assert [old_ids[token] for token in ids] == whole(TEXTS[0])["input_ids"]


STOCK: dict[str, Callable[[], Any]] = {
    "bert": lambda: BertTokenizer(vocab=numbered(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcd", "ab"])),
    "cased": lambda: BertTokenizer(vocab=numbered(["[PAD]", "[UNK]", "[CLS]", *"aBcd"]), do_lower_case=False),
    "xlmr": lambda: XLMRobertaTokenizer(
        vocab=[(token, -1.0) for token in ("<s>", "<pad>", "</s>", "<unk>", "\u2581", *"abcd", "<mask>")]
    ),
}


def numbered(tokens: list[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


@pytest.mark.parametrize("kind", STOCK)
def test_class_is_kept(kind: str, tmp_path: Path) -> None:
    whole = STOCK[kind]()

    small, _ = trim_vocabulary(whole, ["a B c"])
    small.save_pretrained(tmp_path)

    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded) is type(whole)
    assert len(loaded) < len(whole)
    assert loaded.tokenize("a B c") == whole.tokenize("a B c")


def test_class_that_makes_another_backend_is_not_kept() -> None:
    whole = STOCK["bert"]()
    whole.backend_tokenizer.normalizer = normalizers.Replace("a", "b")

    small, _ = trim_vocabulary(whole, ["a c"])

    assert small.tokenize("a c") == whole.tokenize("a c")


# Identity and loading.


def lowercased(tokenizer: Any) -> Any:
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


TOKENIZERS: list[Callable[[], Any]] = [
    lambda: word_tokenizer(["one", "two"]),
    lambda: word_tokenizer(["two", "one"]),
    lambda: lowercased(word_tokenizer(["one", "two"])),
    lambda: framed_tokenizer(["one", "two"]),
    lambda: framed_tokenizer(["one", "two"], types=True),
    lambda: ByT5Tokenizer(),  # not a fast one
    lambda: ByT5Tokenizer(extra_ids=3),
]


def test_hash_is_that_of_what_a_tokenizer_does() -> None:
    hashes = set()
    for make in TOKENIZERS:
        tokenizer = make()
        hashes.add(tokenizer_hash(tokenizer))

        tokenizer(["one two"], truncation=True, max_length=4, padding=True)
        assert tokenizer_hash(tokenizer) == tokenizer_hash(make())
    assert len(hashes) == len(TOKENIZERS)


def test_a_tokenizer_without_files_is_refused(tmp_path: Path) -> None:
    config = BertConfig()
    config.save_pretrained(tmp_path)
    with pytest.raises(XlsrError, match=tmp_path.name):
        load_tokenizer(str(tmp_path))

    tokenizer = word_tokenizer(["one", "two"])
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).get_vocab() == tokenizer.get_vocab()
