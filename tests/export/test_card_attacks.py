"""What a recipe holds stands in its card as text, whatever it looks like."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from card_helpers import SETTINGS
from huggingface_hub import ModelCard

from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.export.card import code_block, one_line, public_path, python_text
from hf_xlsr.runs.card import render_card
from hf_xlsr.runs.methods import Method
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.utils.access_tokens import check_no_token
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.redaction import HIDDEN, redact_tokens

HEADER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
TOKEN = "hf_" + "NeverToBeSeen" * 3
ATTACKS = {
    "template": "{{ 7 * 7 }}{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}{# gone #}",
    "header": "nice\n---\nlicense: mit\ntags: [owned]\n---\n# Owned",
    "key": 'x"\nlicense: mit\n"y: [',
    "anchor": "&a [*a, !!python/object/apply:os.system ['id']]",
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)></details><!--",
    "markdown": "](http://evil) [here](javascript:alert(1)) ![x](http://evil/pixel) `code` | cell | **bold** ~~no~~",
    "fence": "```\n# Owned\n```bash\nrm -rf /\n```",
    "path": "../../../../etc/passwd",
    "lines": "a\r\nb\u2028c\x85d\x00e\u202ef",
    "setext": "---",
    "token": f"my {TOKEN}",
}
MARKUP = ("<script", "<img", "</details><", "<!--", "](http", "](javascript", "{{ 7", "{% for", "**bold")


def run_with(text: str, *keys: str) -> Method:
    """A run whose recipe has a text under some keys."""
    run = load_runs("quickstart")[0]
    recipe = run.recipe
    for key in keys:
        if key == "path":
            recipe.data.train = {"path": text}
        elif key == "languages":
            recipe.languages = ["en", text]
        elif key == "deep":
            recipe.data.cleaning = [{text: {text: [text]}}]
        else:
            setattr(recipe, key, text)
    return run


def outside_code(text: str) -> str:
    """A card without its header, its blocks of code and its code in lines."""
    body = HEADER.sub("", text, count=1)
    body = re.sub(r"^(`{3,})[^\n]*\n.*?^\1[ ]*$", "", body, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(`+)[^`].*?(?<!`)\1(?!`)", "", body)


def bars_of_rows(text: str) -> list[int]:
    """Number of bars in each row of tables that are not escaped."""
    return [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]


def keys_of(card: str) -> set[str]:
    header = HEADER.match(card)
    assert header
    return set(yaml.safe_load(header[1]))


def python_blocks(card: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", card, re.DOTALL)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_recipe_stays_text(attack: str) -> None:
    metrics = Results()
    for name, accuracy in ((attack, 0.5), ("plain", 0.25)):
        metrics |= measured(name, "tatoeba", ("en", "fr"), "test", {"accuracy": accuracy})

    def card_with(text: str) -> str:
        return render_card(run_with(text, "name", "description", "path", "deep"), metrics, SETTINGS)

    card = card_with(attack)
    plain = card_with("tame")

    data = ModelCard(card).data
    assert keys_of(card) == keys_of(plain)
    assert data.license == "unknown"
    assert "owned" not in data.tags
    assert data.model_name == one_line(attack)

    body = outside_code(card)
    plain_body = outside_code(plain)
    assert len(re.findall("^#", body, re.MULTILINE)) == len(re.findall("^#", plain_body, re.MULTILINE))
    assert bars_of_rows(body) == bars_of_rows(plain_body)
    for markup in MARKUP:
        assert not re.search(rf"(?<!\\){re.escape(markup)}", body), markup
    assert "49" not in body
    for secret in (TOKEN, "\x00", "\u202e"):
        assert secret not in card


def test_recipe_block_cannot_be_ended() -> None:
    card = render_card(run_with(ATTACKS["fence"], "deep"), Results(), SETTINGS)
    (fence, block), *_ = re.findall(r"^(`{3,})yaml\n(.*?)^\1$", card, re.DOTALL | re.MULTILINE)
    assert len(fence) == 4
    assert yaml.safe_load(block)["data"]["cleaning"]
    assert code_block("````\na", "").startswith("`````\n")


EVIL = 'fr"); import os; os.system("id"); ("'


def test_languages_stay_text() -> None:
    card = render_card(run_with(EVIL, "languages"), Results(), SETTINGS)
    for block in python_blocks(card):
        assert "os.system" not in block


def test_languages_of_code_are_strings() -> None:
    run = load_runs("moco_bert_en_zh")[0]
    run.recipe.languages = ["en", EVIL]
    run.recipe.model["encoders"] = {"en": "a/b", EVIL: "a/b"}

    blocks = python_blocks(render_card(run, Results(), SETTINGS))

    for block in blocks:
        compile(block, "card", "exec")
    assert python_text(EVIL) in blocks[0]  # as a string, whole
    assert python_text("query: ") == '"query: "'


def test_paths_of_this_machine_are_shortened() -> None:
    recipe = run_with("/people/ann/secret-project/pairs.tsv", "path")
    recipe.recipe.start_from = "/people/ann/runs/first"
    text = render_card(recipe, Results(), SETTINGS)
    assert "ann" not in text
    assert ".../secret-project/pairs.tsv" in text
    assert ".../runs/first" in text


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("C:\\Users\\ann\\x\\y.tsv", ".../x/y.tsv"),
        ("~/a/b/c.tsv", ".../b/c.tsv"),
        ("../../etc/passwd", ".../etc/passwd"),
        ("opus-100", "opus-100"),
    ],
)
def test_public_path(path: str, expected: str) -> None:
    assert public_path(path) == expected


def test_tokens_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-token-of-another-form")
    assert redact_tokens(f"a-token-of-another-form and {TOKEN}.") == f"{HIDDEN} and {HIDDEN}."
    assert redact_tokens("hf_xlsr.modeling.dual_momentum.modeling_dual_momentum hf_hub_download") != HIDDEN

    monkeypatch.setenv("HF_TOKEN", "short")
    assert redact_tokens("a short text") == "a short text"


@pytest.mark.parametrize("value", [{"a": {"b": [1, TOKEN]}}, {TOKEN: 1}, TOKEN], ids=["nested", "key", "text"])
def test_tokens_are_found(value: Any) -> None:
    with pytest.raises(XlsrError, match="HF_TOKEN") as error:
        check_no_token(value, "recipe 'x'")
    assert TOKEN not in str(error.value)


def test_text_like_a_token() -> None:
    check_no_token({"a": "hf_short", "b": None, "c": 1.5}, "recipe 'x'")
