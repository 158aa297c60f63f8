"""The rule which prompt stands before a text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hf_xlsr.data.prompts import PromptTable

E5 = SimpleNamespace(prompts={"query": "query: ", "document": "", "passage": "passage: "}, default_prompt_name=None)
LANGUAGES = SimpleNamespace(prompts={"query": "", "document": "", "de": "Text: ", "fr": "texte : "})
DEFAULT = SimpleNamespace(prompts={"query": "q: ", "document": "d: "}, default_prompt_name="query")
NONE = SimpleNamespace()


@pytest.mark.parametrize(
    ("encoder", "prompts", "role", "language", "expected"),
    [
        (E5, None, None, None, ""),
        (E5, None, "query", None, "query: "),
        (E5, None, "document", None, "passage: "),
        (E5, None, "source", None, ""),  # nobody says that sources are queries
        (E5, {"query": "Q "}, "source", None, "Q "),
        (E5, {"target": "T "}, "document", None, "T "),
        (E5, "all ", "document", None, "all "),
        (LANGUAGES, None, None, "deu", "Text: "),
        (LANGUAGES, None, "query", "fr", "texte : "),
        (LANGUAGES, None, None, "en", ""),
        (LANGUAGES, "all ", None, "de", "all "),
        (LANGUAGES, {"query": ""}, "query", "de", ""),
        (LANGUAGES, {"de": ""}, None, "de", ""),
        (DEFAULT, None, None, None, "q: "),
        (DEFAULT, None, "document", None, "d: "),
        (DEFAULT, None, None, "de", "q: "),
        (DEFAULT, "", None, None, ""),
        (DEFAULT, "", "document", None, ""),
        (DEFAULT, {"default": "x "}, None, None, "x "),
        (DEFAULT, {"default": "x "}, "document", None, "x "),
        (DEFAULT, {"default": "x ", "de": "y "}, None, "de", "y "),
        (DEFAULT, {"default": "x ", "de": "y "}, "query", "de", "y "),
        (DEFAULT, {"de": "y "}, None, "en", "q: "),
        (NONE, None, "query", "de", ""),
        (NONE, {"de": "y "}, None, "de", "y "),
    ],
)
def test_prompt_of_a_text(encoder: Any, prompts: Any, role: str | None, language: str | None, expected: str) -> None:
    table = PromptTable.of(encoder).given(prompts)
    assert table.text(role=role, language=language) == expected


@pytest.mark.parametrize(
    "prompts", ["x ", {"default": "x ", "de": "y "}, {"query": "q ", "document": "d "}, {"fr": "z "}]
)
@pytest.mark.parametrize("role", [None, "query", "document", "source", "target"])
@pytest.mark.parametrize("language", [None, "de", "fr", "en"])
def test_stored_prompts_say_the_same(prompts: Any, role: str | None, language: str | None) -> None:
    """A model in training stores them; they are read again as those of an encoder."""
    table = PromptTable().given(prompts)
    stored = PromptTable(dict(table.texts), table.default)
    assert stored.text(role=role, language=language) == table.text(role=role, language=language)
