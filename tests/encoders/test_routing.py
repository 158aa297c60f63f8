"""Routes by language, by a mapping, or none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router

from hf_xlsr.encoders.encoding import route_of, routes_of
from hf_xlsr.utils.errors import XlsrError


def routed(*names: str) -> Any:
    return SimpleNamespace(routes=names)


def test_language_codes_are_normalised():
    encoder = routed("en", "zh")
    assert [route_of(encoder, tag) for tag in ("eng", "en_GB", "cmn", "zho_Hans")] == ["en", "en", "zh", "zh"]


def test_encoders_without_language_routes():
    assert route_of(object(), None) is None
    assert route_of(object(), "de") is None
    assert route_of(routed("query", "document"), "de") is None


def test_mapping_of_routes():
    routes = {"eng": "source", "de": "target"}
    assert route_of(routed("source", "target"), "en", routes) == "source"


@pytest.mark.parametrize(
    ("names", "language", "routes", "key"),
    [
        (("en", "zh"), None, None, "languages"),
        (("en", "zh"), "de", None, "'de'"),
        (("source", "target"), "fr", {"eng": "source"}, "'fr'"),
        (("en",), "de", {"de": "target"}, "target"),
    ],
)
def test_unknown_routes(names: tuple[str, ...], language: str | None, routes: dict[str, str] | None, key: str):
    with pytest.raises(XlsrError, match=key):
        route_of(routed(*names), language, routes)


def test_routes_of_a_router(tiny_export: str):
    stock = SentenceTransformer(tiny_export)
    assert routes_of(stock) == ()
    router = Router({"en": [stock[0], stock[1]], "fr": [stock[0], stock[1]]}, default_route="en")
    assert routes_of(SentenceTransformer(modules=[router])) == ("en", "fr")
