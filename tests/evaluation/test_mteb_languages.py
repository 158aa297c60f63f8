"""Telling a column's language among two, and languages as mteb writes them."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mteb_helpers import ENGLISH, FRENCH

mteb = pytest.importorskip("mteb")

from hf_xlsr.evaluation.mteb.data import column_language, langscript, subset_languages  # noqa: E402
from hf_xlsr.utils.errors import XlsrError  # noqa: E402

needs_py3langid = pytest.mark.skipif(importlib.util.find_spec("py3langid") is None, reason="needs the extra text")


def language(texts: list[str], first: str, second: str) -> str:
    return column_language(texts, (first, second), place="a column")


@needs_py3langid
@given(share=st.integers(0, 12), order=st.randoms())
@settings(max_examples=30, deadline=None)
def test_two_thirds_of_the_texts_decide(share: int, order: Any):
    texts = (FRENCH * 2)[:share] + (ENGLISH * 2)[: 12 - share]
    order.shuffle(texts)
    for candidates in (("fr", "en"), ("en", "fr")):
        if share in (5, 6, 7):
            with pytest.raises(XlsrError, match="a column"):
                language(texts, *candidates)
        else:
            assert language(texts, *candidates) == ("fr" if share >= 8 else "en")


@needs_py3langid
def test_language_unknown_to_the_identifier():
    swiss = ["Mir gönd hüt is Schwimmbad.", "Das isch es schöns Huus.", "I ha hüt kei Ziit.", "Chunsch du au mit?"]
    assert language(swiss, "gsw", "en") == language(swiss, "en", "gsw") == "gsw"
    assert language(ENGLISH, "gsw", "en") == language(ENGLISH, "en", "gsw") == "en"


def test_long_columns_are_sampled_evenly():
    # 2,000 votes at even distances: the first 2,000 texts alone would say Russian.
    texts = ["Привет, мир"] * 2500 + ["Hello world"] * 7500
    assert language(texts, "ru", "en") == "en"


def test_subset_languages():
    metadata = mteb.get_task("Tatoeba").metadata
    assert subset_languages(metadata, "cmn-eng") == ("zh", "en")
    assert subset_languages(metadata, "deu_Latn") == ("de",)
    assert subset_languages(metadata, "default") == ()
    assert subset_languages(mteb.get_task("STS17").metadata, "en-en") == ("en",)
    assert subset_languages(mteb.get_task("STSBenchmark").metadata, "default") == ("en",)


def test_langscript():
    tags = [langscript(tag) for tag in ("de", "zh-Hant", "cmn", "pt_BR", "sr", "multilingual", "xx", "")]
    assert tags == ["deu-Latn", "zho-Hant", "cmn-Hans", "por-Latn", "srp-Cyrl", None, None, None]
