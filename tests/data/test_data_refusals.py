"""Invalid inputs of the package: each raises an error that names what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from hf_xlsr.data.cleaning import LanguageFilter, build_cleaner
from hf_xlsr.utils.errors import XlsrError


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (["normalise"], "normalize"),
        ([{"length": {"max_char": 3}}], "max_char"),
        ([{"length": 500}], "length"),
        ([{"normalize": {"form": "NFD"}}], "form"),
        ([{"deduplicate": {"on": "pairs"}}], "on"),
        ([{"ratio": {"max_ratio": 0.5}}], "max_ratio"),
        (["sample"], "fraction"),
        ([{"sample": {"fraction": 1.5}}], "fraction"),
        ([{"language": {"languages": ["en", "qqq"]}}], "qqq"),
        ([{"language": {"method": "scripts"}}], "method"),
        ([{"language": {"languages": ["en", "pl"], "method": "alphabet"}}], "pl"),
        ([{"language": {"min_share": 2}}], "min_share"),
    ],
)
def test_invalid_cleaning_steps(config: Any, key: str) -> None:
    with pytest.raises(XlsrError, match=key):
        build_cleaner(config, languages=["en"])


def test_language_filter_needs_languages() -> None:
    with pytest.raises(XlsrError, match="source_lang"):
        LanguageFilter().keeps({"source": "Hi", "target": "Да"})
