from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router

from hf_xlsr.encoders.cache import CachedEncoder
from hf_xlsr.encoders.encoding import embed, route_of, routes_of
from hf_xlsr.utils.errors import XlsrError


class Recorder:
    """Gives each text its own vector and records its calls."""

    def __init__(self, dtype: type = np.float64):
        self.calls: list[tuple[list[str], dict[str, Any]]] = []
        self.dtype = dtype

    def encode(self, texts: list[str], **kwargs: Any) -> np.ndarray:
        self.calls.append((texts, kwargs))
        return np.array([[len(text), text.count("a"), 1.0] for text in texts], self.dtype)


def test_rows_are_unit_float32_in_the_order_of_the_texts():
    vectors = embed(Recorder(), ["a", "bb", "cacaca"])
    expected = np.array([[1.0, 1.0, 1.0], [2.0, 0.0, 1.0], [6.0, 3.0, 1.0]])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, expected, rtol=1e-6)
    assert vectors.dtype == np.float32
    assert vectors.flags.c_contiguous


def test_duplicates_are_encoded_once_and_spread_back():
    encoder = Recorder()
    texts = ["x", "yy", "x", "zzz", "yy", "x"]
    vectors = embed(encoder, texts, prompt="query: ")

    ((encoded_texts, _),) = encoder.calls
    assert encoded_texts == ["query: x", "query: yy", "query: zzz"]
    for text, vector in zip(texts, vectors, strict=True):
        (expected,) = embed(Recorder(), [f"query: {text}"])
        np.testing.assert_array_equal(vector, expected)


class Fixed:
    def __init__(self, answer: Any):
        self.answer = answer

    def encode(self, texts: list[str], **kwargs: Any) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("encoder", "texts", "key"),
    [
        (Recorder(), "a sentence", "texts"),
        (Recorder(), [], "texts"),
        (Fixed(np.ones((1, 3))), ["a", "b"], r"\(1, 3\)"),
        (Fixed(np.array([[1.0], [np.nan]])), ["a", "b"], "row 1"),
    ],
)
def test_invalid_input(encoder: Any, texts: Any, key: str):
    with pytest.raises(XlsrError, match=key):
        embed(encoder, texts)


TEXTS = ["one two", "house tree"]
OWN = {"query": "red ", "passage": "blue ", "document": "", "fr": "bird "}


@pytest.fixture
def model(tiny_export: str) -> SentenceTransformer:
    return SentenceTransformer(tiny_export, device="cpu", prompts=OWN, default_prompt_name="passage")


@pytest.mark.parametrize("wrap", [lambda model: model, CachedEncoder], ids=["model", "cached"])
def test_same_characters_with_and_without_the_default_prompt(wrap: Any, model: SentenceTransformer):
    encoder = wrap(model)
    with_both = embed(encoder, ["red one two"])
    with_one = embed(encoder, ["one two"], prompt="red ")
    assert np.abs(with_both - with_one).max() > 1e-3


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ({}, "blue "),
        ({"language": "fra"}, "bird "),
        ({"language": "en"}, "blue "),
        ({"role": "query"}, "red "),
        ({"role": "document"}, "blue "),
        ({"role": "query", "language": "fr"}, "red "),
        ({"role": "source", "language": "fr"}, "bird "),
        ({"prompt": ""}, ""),
        ({"prompt": {"default": "one "}}, "one "),
        ({"language": "fr", "prompt": "one "}, "one "),
        ({"role": "query", "prompt": ""}, ""),
        ({"language": "de", "prompt": {"de": "one "}}, "one "),
        ({"language": "fr", "prompt": {"de": "one "}}, "bird "),
        ({"role": "document", "prompt": {"document": "one "}}, "one "),
        ({"role": "target", "prompt": {"target": "one "}}, "one "),
    ],
)
def test_prompt_of_a_call(call: dict[str, Any], expected: str, model: SentenceTransformer):
    vectors = embed(model, TEXTS, **call)
    np.testing.assert_allclose(vectors, model.encode(TEXTS, prompt=expected), atol=1e-6)


def test_language_of_a_query_where_roles_have_no_prompt(tiny_export: str):
    model = SentenceTransformer(tiny_export, device="cpu")
    assert model.prompts == {"query": "", "document": ""}  # sentence-transformers adds them
    vectors = embed(model, ["house"], role="query", language="fr", prompt={"fr": "bird "})
    np.testing.assert_allclose(vectors, model.encode(["house"], prompt="bird "), atol=1e-6)


@pytest.mark.parametrize(("call", "prompt"), [({"prompt": "red blue "}, "red blue "), ({"language": "fr"}, "bird ")])
def test_prompt_outside_of_the_pooling(call: dict[str, Any], prompt: str, model: SentenceTransformer):
    model.set_pooling_include_prompt(False)
    vectors = embed(model, TEXTS, **call)
    np.testing.assert_allclose(vectors, model.encode(TEXTS, prompt=prompt), atol=1e-6)


def test_encoder_is_only_told_what_it_would_not_do_by_itself():
    encoder = Recorder()
    encoder.prompts = {"x": "red "}  # type: ignore[attr-defined]
    encoder.default_prompt_name = "x"  # type: ignore[attr-defined]
    for prompt in (None, "red ", "", "blue "):
        embed(encoder, ["a"], prompt=prompt)
    assert [texts for texts, _ in encoder.calls] == [["a"]] * 4
    assert [options.get("prompt") for _, options in encoder.calls] == [None, None, "", "blue "]


def test_roles_take_their_routes():
    encoder = Recorder()
    encoder.routes = ("query", "document")  # type: ignore[attr-defined]
    for role in ("query", "document", "source", None):
        embed(encoder, ["a"], role=role)
    assert [options.get("task") for _, options in encoder.calls] == ["query", "document", None, None]


def test_what_encoders_return() -> None:
    class Lengths:
        def encode(self, texts: list[str], **_: Any) -> Any:
            return [torch.tensor([float(len(text)), 1.0]).bfloat16().requires_grad_() for text in texts]

    texts = ["a", "bcd"]
    for encoder in (Lengths(), CachedEncoder(Lengths())):
        vectors = embed(encoder, iter(texts), normalize=False)
        assert vectors.dtype == np.float32
        assert vectors.tolist() == [[1, 1], [3, 1]]


def routed(*names: str) -> Any:
    return SimpleNamespace(routes=names)


@pytest.mark.parametrize(
    ("encoder", "language", "routes", "expected"),
    [
        (routed("en", "zh"), "eng", None, "en"),
        (routed("en", "zh"), "en_GB", None, "en"),
        (routed("en", "zh"), "cmn", None, "zh"),
        (routed("en", "zh"), "zho_Hans", None, "zh"),
        (routed("zh-Hans", "zh-Hant"), "zh-Hans", None, "zh-Hans"),
        (routed("zh-Hans", "zh-Hant"), "zho_Hant", None, "zh-Hant"),
        (routed("source", "target"), "zh-Hans", {"zh-Hans": "source", "zh-Hant": "target"}, "source"),
        (object(), None, None, None),
        (routed("query", "document"), "de", None, None),
        (routed("source", "target"), "en", {"eng": "source", "de": "target"}, "source"),
    ],
)
def test_route_of_a_language(encoder: Any, language: str | None, routes: Any, expected: str | None):
    assert route_of(encoder, language, routes) == expected


def test_unknown_routes():
    with pytest.raises(XlsrError, match="'de'"):
        route_of(routed("en", "zh"), "de")
    with pytest.raises(XlsrError, match="languages"):
        route_of(routed("en", "zh"), None)


def test_routes_of_a_router(tiny_export: str):
    stock = SentenceTransformer(tiny_export)
    assert routes_of(stock) == ()
    router = Router({"en": [stock[0], stock[1]], "fr": [stock[0], stock[1]]}, default_route="en")
    assert routes_of(SentenceTransformer(modules=[router])) == ("en", "fr")
