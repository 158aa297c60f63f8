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
    ("encoder", "given", "asked", "expected"),
    [
        (E5, None, {}, ""),
        (E5, None, {"role": "query"}, "query: "),
        (E5, None, {"role": "document"}, "passage: "),
        (E5, None, {"role": "source"}, ""),  # nobody says that sources are queries
        (E5, {"query": "Q "}, {"role": "source"}, "Q "),
        (E5, {"target": "T "}, {"role": "document"}, "T "),
        (E5, "all ", {"role": "document"}, "all "),
        (LANGUAGES, None, {"language": "deu"}, "Text: "),
        (LANGUAGES, None, {"language": "fr", "role": "query"}, "texte : "),
        (LANGUAGES, None, {"language": "en"}, ""),
        (LANGUAGES, "all ", {"language": "de"}, "all "),
        (LANGUAGES, {"query": ""}, {"language": "de", "role": "query"}, ""),
        (LANGUAGES, {"de": ""}, {"language": "de"}, ""),
        (DEFAULT, None, {}, "q: "),
        (DEFAULT, None, {"role": "document"}, "d: "),
        (DEFAULT, None, {"language": "de"}, "q: "),
        (DEFAULT, "", {}, ""),
        (DEFAULT, "", {"role": "document"}, ""),
        (DEFAULT, {"default": "x "}, {}, "x "),
        (DEFAULT, {"default": "x "}, {"role": "document"}, "x "),
        (DEFAULT, {"default": "x ", "de": "y "}, {"language": "de"}, "y "),
        (DEFAULT, {"default": "x ", "de": "y "}, {"language": "de", "role": "query"}, "y "),
        (DEFAULT, {"de": "y "}, {"language": "en"}, "q: "),
        (NONE, None, {"role": "query", "language": "de"}, ""),
        (NONE, {"de": "y "}, {"language": "de"}, "y "),
    ],
)
def test_prompt_of_a_text(encoder: Any, given: Any, asked: dict[str, str], expected: str) -> None:
    assert PromptTable.of(encoder).given(given).text(**asked) == expected


@pytest.mark.parametrize(
    "given", ["x ", {"default": "x ", "de": "y "}, {"query": "q ", "document": "d "}, {"fr": "z "}]
)
def test_stored_prompts_say_the_same(given: Any) -> None:
    """A model in training stores them; they are read again as those of an encoder."""
    table = PromptTable().given(given)
    stored = PromptTable(dict(table.texts), table.default)
    for role in (None, "query", "document", "source", "target"):
        for language in (None, "de", "fr", "en"):
            asked = {"role": role, "language": language}
            assert stored.text(**asked) == table.text(**asked)
