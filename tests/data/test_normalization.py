from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.normalization import match_key, normalize_text, width

# Characters that text functions trip over: joiners, marks, compatibility forms, controls, odd cases, other scripts.
ODD = (
    "aA1 \t\n.!'-éß ſİΣﬁ½…´¨\u00a0\u00ad\u200b\u200c\u200d\u200e\u2028\ufeff\x00\x1f\x85\u0301\u094d\u0345"
    "क漢ｱﾞ한\ud800😀\ufe0f"
)
TEXTS = st.one_of(st.text(st.sampled_from(ODD), max_size=12), st.text(max_size=8))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Don’t", "don t"),
        ("Straße", "strasse"),
        ("e\u0301te\u0301", "été"),
        ("नमस्ते।", "नमस्ते"),
        ("co\u00adop\u200berate\ufeff", "cooperate"),
        (" \u200b\n", ""),
    ],
)
def test_match_key(text: str, key: str) -> None:
    assert match_key(text) == key


@settings(max_examples=50)
@given(TEXTS)
def test_match_key_is_stable_and_sees_through_normalisation(text: str) -> None:
    key = match_key(text)
    assert match_key(key) == key
    assert match_key(normalize_text(text)) == key
    assert match_key(f"  {text.replace(' ', '   ')}\n") == key
    if any(unicodedata.category(character)[0] in "LN" for character in key):
        assert all(character == " " or unicodedata.category(character)[0] in "LMN" for character in key)
    assert "  " not in key and "\t" not in key


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("  a\t b\u00a0\u2003c\n", "a b c"),
        ("a\u200bb\x00c\u00add\ufeff", "abcd"),
        ("e\u200b\u0301", "é"),
        ("می\u200cخواهم", "می\u200cخواهم"),  # a joiner between letters is spelling
        ("ന്\u200d", "ന്\u200d"),  # behind a virama, at the end of the word
        ("a\u200c b\u200d", "a b"),
        ("\u0301\x00\u094d\u200c", "\u094d\u0301"),  # the marks change places once the control is gone
        ("ＡＢｃ１２　ｶﾞ ﬁn ﻻ", "ABc12 ガ fin لا"),  # variants of letters and digits
        ("10⁶ m², 1½ ℃, 5 µm™, 5 kΩ！", "10⁶ m², 1½ ℃, 5 µm™, 5 kΩ！"),  # values and signs
        ("กำ ŉ ĳ", "กำ ŉ ĳ"),
        ("👨\u200d👩\u200d👧 🏳️\u200d🌈 👩🏽\u200d🚒", "👨\u200d👩\u200d👧 🏳️\u200d🌈 👩🏽\u200d🚒"),
        ("👨\u200d a\u200d👩", "👨 a👩"),  # joins nothing
    ],
)
def test_normalize(text: str, clean: str) -> None:
    assert normalize_text(text) == clean


@settings(max_examples=50)
@given(text=TEXTS, form=st.sampled_from(["letters", "NFKC", "NFC"]), lowercase=st.booleans())
def test_normalize_is_idempotent_and_clean(text: str, form: Any, lowercase: bool) -> None:
    canonical: Any = "NFC" if form == "letters" else form
    once = normalize_text(text, form, lowercase)
    assert normalize_text(once, form, lowercase) == once
    assert unicodedata.is_normalized(canonical, once)
    assert once.split() == [part for part in once.split(" ") if part]
    for character in once:
        assert unicodedata.category(character) not in ("Cc", "Cs")
    assert "\u200b" not in once and "\ufeff" not in once
    assert not lowercase or once == unicodedata.normalize(canonical, once.lower())


def test_width_counts_chinese_japanese_and_korean_twice() -> None:
    assert [width(text) for text in ["", "abc", "é", "漢字", "かな", "한국", "漢a。"]] == [0, 3, 1, 4, 4, 4, 5]
