from __future__ import annotations

import pytest

from hf_xlsr.cli.options import parse_languages, parse_routes
from hf_xlsr.utils.errors import XlsrError


def test_values_may_stand_apart():
    assert parse_languages(" en, de ,") == ["en", "de"]
    assert parse_routes("en = source, de=target") == {"en": "source", "de": "target"}
    assert parse_languages(None) == [] and parse_routes(None) == {}


@pytest.mark.parametrize("text", ["de", "en=source,de", "de=", "=de"])
def test_a_route_has_two_sides(text: str):
    with pytest.raises(XlsrError, match=f"--routes has '{text.split(',')[-1]}'; write LANGUAGE=ROUTE"):
        parse_routes(text)
