"""The rule which prompt stands before a text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from hf_xlsr.data.prompts import PromptTable

ENCODERS = {
    "E5": SimpleNamespace(
        prompts={"query": "query: ", "document": "", "passage": "passage: "}, default_prompt_name=None
    ),
    "LANGUAGES": SimpleNamespace(prompts={"query": "", "document": "", "de": "Text: ", "fr": "texte : "}),
    "DEFAULT": SimpleNamespace(prompts={"query": "q: ", "document": "d: "}, default_prompt_name="query"),
    "NONE": SimpleNamespace(),
}
# Encoder, prompts of the recipe, role and language of a text, and the prompt before it; nobody says that sources are
# queries.
CASES = """\
E5        |                               |          |          | ""
E5        |                               | query    |          | "query: "
E5        |                               | document |          | "passage: "
E5        |                               | source   |          | ""
E5        | {"query": "Q "}               | source   |          | "Q "
E5        | {"target": "T "}              | document |          | "T "
E5        | "all "                        | document |          | "all "
LANGUAGES |                               |          | deu      | "Text: "
LANGUAGES |                               | query    | fr       | "texte : "
LANGUAGES |                               |          | en       | ""
LANGUAGES | "all "                        |          | de       | "all "
LANGUAGES | {"query": ""}                 | query    | de       | ""
LANGUAGES | {"de": ""}                    |          | de       | ""
DEFAULT   |                               |          |          | "q: "
DEFAULT   |                               | document |          | "d: "
DEFAULT   |                               |          | de       | "q: "
DEFAULT   | ""                            |          |          | ""
DEFAULT   | ""                            | document |          | ""
DEFAULT   | {"default": "x "}             |          |          | "x "
DEFAULT   | {"default": "x "}             | document |          | "x "
DEFAULT   | {"default": "x ", "de": "y "} |          | de       | "y "
DEFAULT   | {"default": "x ", "de": "y "} | query    | de       | "y "
DEFAULT   | {"de": "y "}                  |          | en       | "q: "
NONE      |                               | query    | de       | ""
NONE      | {"de": "y "}                  |          | de       | "y "
""".splitlines()


@pytest.mark.parametrize("case", CASES)
def test_prompt_of_a_text(case: str) -> None:
    encoder, *cells = [cell.strip() for cell in case.split("|")]
    prompts, role, language, expected = map(yaml.safe_load, cells)
    table = PromptTable.of(ENCODERS[encoder]).given(prompts)
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
