"""What a recipe holds stands in its card as text, whatever it looks like."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from hf_xlsr.encoders.heads import new_head
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.export.card import code_block, one_line, public_path, python_text
from hf_xlsr.runs.card import render_card
from hf_xlsr.runs.methods import Method
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.utils.access_tokens import HIDDEN, check_no_token, redact_tokens
from hf_xlsr.utils.errors import XlsrError

SETTINGS: dict[str, Any] = {"data": {"pairs": 1, "vocab_size": 2, "cleaning": {}}, "parameters": 3, "steps": 4}
SETTINGS |= {"dimension": 5, "seconds": {"training": 6.0}, "device": "cpu", "processes": 1, "threads": 1}
SETTINGS |= {"precision": "float32", "max_length": 32, "head": new_head(5)}
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


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_recipe_stays_text(attack: str) -> None:
    recipe = run_with(attack, "name", "description", "path", "deep")
    metrics = Results()
    for name, accuracy in ((attack, 0.5), ("plain", 0.25)):
        metrics |= measured(name, "tatoeba", ("en", "fr"), "test", {"accuracy": accuracy})
    text = render_card(recipe, metrics, SETTINGS)
    plain = render_card(run_with("tame", "name", "description", "path", "deep"), metrics, SETTINGS)

    def keys(card: str) -> set[str]:
        header = HEADER.match(card)
        assert header
        return set(yaml.safe_load(header[1]))

    data = ModelCard(text).data
    assert keys(text) == keys(plain)
    assert data.license == "unknown"
    assert "owned" not in data.tags
    assert data.model_name == one_line(attack)

    body = outside_code(text)
    plain_body = outside_code(plain)
    assert len(re.findall("^#", body, re.MULTILINE)) == len(re.findall("^#", plain_body, re.MULTILINE))
    assert bars_of_rows(body) == bars_of_rows(plain_body)
    for markup in MARKUP:
        assert not re.search(rf"(?<!\\){re.escape(markup)}", body), markup
    assert "49" not in body
    for secret in (TOKEN, "\x00", "\u202e"):
        assert secret not in text


def test_recipe_block_cannot_be_ended() -> None:
    text = render_card(run_with(ATTACKS["fence"], "deep"), Results(), SETTINGS)
    (fence, block), *_ = re.findall(r"^(`{3,})yaml\n(.*?)^\1$", text, re.DOTALL | re.MULTILINE)
    assert len(fence) == 4 and yaml.safe_load(block)["data"]["cleaning"]
    assert code_block("````\na", "").startswith("`````\n")


def test_languages_stay_text() -> None:
    evil = 'fr"); import os; os.system("id"); ("'
    recipe = run_with(evil, "languages")
    text = render_card(recipe, Results(), SETTINGS)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        assert "os.system" not in block
    dual = load_runs("moco_bert_en_zh")[0]
    dual.recipe.languages = ["en", evil]
    dual.recipe.model["encoders"] = {"en": "a/b", evil: "a/b"}
    blocks = re.findall(r"```python\n(.*?)```", render_card(dual, Results(), SETTINGS), re.DOTALL)
    for block in blocks:
        compile(block, "card", "exec")
    assert python_text(evil) in blocks[0]  # as a string, whole
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


def test_tokens_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-token-of-another-form")
    assert redact_tokens(f"a-token-of-another-form and {TOKEN}.") == f"{HIDDEN} and {HIDDEN}."
    assert redact_tokens("hf_xlsr.modeling.dual_momentum.modeling_dual_momentum hf_hub_download") != HIDDEN
    monkeypatch.setenv("HF_TOKEN", "short")
    assert redact_tokens("a short text") == "a short text"
    for value in ({"a": {"b": [1, TOKEN]}}, {TOKEN: 1}, TOKEN):
        with pytest.raises(XlsrError, match="HF_TOKEN") as error:
            check_no_token(value, "recipe 'x'")
        assert TOKEN not in str(error.value)
    check_no_token({"a": "hf_short", "b": None, "c": 1.5}, "recipe 'x'")
