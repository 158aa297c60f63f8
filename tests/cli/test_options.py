from __future__ import annotations

import pytest

from hf_xlsr.cli.options import labelled, parse_languages, parse_routes
from hf_xlsr.utils.errors import XlsrError


def test_spaces_are_ignored() -> None:
    assert parse_languages(" en, de ,") == ["en", "de"]
    assert parse_routes("en = source, de=target") == {"en": "source", "de": "target"}
    assert parse_languages(None) == [] and parse_routes(None) == {}


@pytest.mark.parametrize("text", ["de", "en=source,de", "de=", "=de"])
def test_invalid_routes(text: str) -> None:
    with pytest.raises(XlsrError, match="--routes"):
        parse_routes(text)


def test_equal_labels() -> None:
    with pytest.raises(XlsrError, match="'a'"):
        labelled(["a=x", "a=y"])
