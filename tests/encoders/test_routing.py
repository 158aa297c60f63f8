"""Routes: by the language's name, by a mapping, or by nothing at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router

from hf_xlsr.encoders.routing import route_of, routes_of
from hf_xlsr.utils.errors import XlsrError


def routed(*names: str) -> Any:
    return SimpleNamespace(routes=names)


def test_a_language_finds_its_route_under_any_code():
    encoder = routed("en", "zh")
    assert [route_of(encoder, tag) for tag in ("eng", "en_GB", "cmn", "zho_Hans")] == ["en", "en", "zh", "zh"]


def test_encoders_without_language_routes_need_none():
    assert route_of(object(), None) is None
    assert route_of(object(), "de") is None
    assert route_of(routed("query", "document"), "de") is None


@pytest.mark.parametrize(("language", "says"), [(None, "language was not given"), ("de", "none for 'de'")])
def test_a_language_router_refuses_to_guess(language: str | None, says: str):
    with pytest.raises(XlsrError, match=f"route for each of en, zh, {says}|each of en, zh, but .*{says}"):
        route_of(routed("en", "zh"), language)


def test_a_mapping_names_routes_that_bear_other_names():
    routes = {"eng": "source", "de": "target"}
    assert route_of(routed("source", "target"), "en", routes) == "source"
    with pytest.raises(XlsrError, match="language 'fr' is not in routes"):
        route_of(routed("source", "target"), "fr", routes)
    with pytest.raises(XlsrError, match="route 'target' is not one"):
        route_of(routed("en"), "de", routes)


def test_the_routes_of_a_router_are_found(tiny_export: str):
    stock = SentenceTransformer(tiny_export)
    assert routes_of(stock) == ()
    router = Router({"en": [stock[0], stock[1]], "fr": [stock[0], stock[1]]}, default_route="en")
    assert routes_of(SentenceTransformer(modules=[router])) == ("en", "fr")
