"""Telling a column's language among two, and languages as mteb writes them."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mteb_helpers import ENGLISH, FRENCH

from hf_xlsr.data.languages import language_identifier
from hf_xlsr.evaluation.mteb.languages import column_language, langscript, subset_languages
from hf_xlsr.utils.errors import XlsrError

needs_langid = pytest.mark.skipif(importlib.util.find_spec("py3langid") is None, reason="needs the extra langid")


def language(texts: list[str], first: str, second: str) -> str:
    return column_language(texts, (first, second), place="a column")


@needs_langid
@given(share=st.integers(0, 12), order=st.randoms())
@settings(max_examples=30, deadline=None)
def test_two_thirds_of_the_texts_settle_it(share: int, order: Any):
    texts = (FRENCH * 2)[:share] + (ENGLISH * 2)[: 12 - share]
    order.shuffle(texts)
    for candidates in (("fr", "en"), ("en", "fr")):
        if share in (5, 6, 7):
            with pytest.raises(XlsrError, match="cannot be told to be in"):
                language(texts, *candidates)
        else:
            assert language(texts, *candidates) == ("fr" if share >= 8 else "en")


def test_letters_settle_it_without_a_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    language_identifier.cache_clear()
    russian = ["Открой File и Edit", "Версия LibreOffice", "Да", "42", "MB"]  # technical texts keep Latin words
    assert language(russian, "en", "ru") == "ru"
    assert language(["開いて File", "保存", "はい"], "ja", "de") == "ja"
    with pytest.raises(XlsrError, match=r"pip install 'hf-xlsr\[langid\]'"):
        language(ENGLISH, "en", "fr")


@needs_langid
def test_a_language_that_the_identifier_does_not_know_is_the_other_one():
    swiss = ["Mir gönd hüt is Schwimmbad.", "Das isch es schöns Huus.", "I ha hüt kei Ziit.", "Chunsch du au mit?"]
    assert language(swiss, "gsw", "en") == language(swiss, "en", "gsw") == "gsw"
    assert language(ENGLISH, "gsw", "en") == language(ENGLISH, "en", "gsw") == "en"


@needs_langid
@pytest.mark.parametrize("candidates", [("nb", "nn"), ("gsw", "ang")])
def test_languages_that_the_identifier_cannot_tell_apart(candidates: tuple[str, str]):
    with pytest.raises(XlsrError, match="which py3langid cannot tell apart"):
        language(ENGLISH, *candidates)


def test_long_columns_are_sampled_over_their_whole_length():
    # 2,000 votes at even distances: the first 2,000 texts alone would say Russian.
    texts = ["Привет, мир"] * 2500 + ["Hello world"] * 7500
    assert language(texts, "ru", "en") == "en"


def test_languages_of_subsets():
    mteb = pytest.importorskip("mteb")
    metadata = mteb.get_task("Tatoeba").metadata
    assert subset_languages(metadata, "cmn-eng") == ("zh", "en")
    assert subset_languages(metadata, "deu_Latn") == ("de",)
    assert subset_languages(metadata, "default") == ()
    assert subset_languages(mteb.get_task("STS17").metadata, "en-en") == ("en",)
    assert subset_languages(mteb.get_task("STSBenchmark").metadata, "default") == ("en",)


def test_languages_as_mteb_writes_them():
    pytest.importorskip("mteb")
    tags = [langscript(tag) for tag in ("de", "zh-Hant", "cmn", "pt_BR", "sr", "multilingual", "xx", "")]
    assert tags == ["deu-Latn", "zho-Hant", "cmn-Hans", "por-Latn", "srp-Cyrl", None, None, None]
