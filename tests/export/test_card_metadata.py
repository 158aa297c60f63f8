"""The header of a card: what it says, where that comes from, and what is refused."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from hf_xlsr.export.card_check import check_card, check_card_section
from hf_xlsr.export.card_examples import EXAMPLES, translation_pair, widget
from hf_xlsr.runs.card_metadata import base_models, card_metadata, datasets_of, licence_of
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.utils.errors import XlsrError


def recipe_of(name: str = "quickstart", **more: Any) -> dict[str, Any]:
    return deepcopy(load_runs(name)[0]) | more


def test_header_of_a_recipe_on_the_hub() -> None:
    data = card_metadata(recipe_of("moco_bert_en_zh"), {})
    assert data.base_model == ["google-bert/bert-base-uncased", "hfl/chinese-roberta-wwm-ext"]
    assert data.tags[-2:] == ["hf-xlsr", "dual_momentum"] and data.get("widget") is None  # it names no route
    named = recipe_of("cmlm_f_mbert")
    assert base_models(named) == ["google-bert/bert-base-multilingual-cased"]
    glue = recipe_of("hictl_glue_mrpc")
    assert datasets_of(glue) == ["nyu-mll/glue"]
    corpora = recipe_of()
    corpora["data"]["train"] = [{"corpus": "europarl"}, {"corpus": "bible"}, {"path": "some/file.tsv"}]
    assert datasets_of(corpora) == ["Helsinki-NLP/europarl"]


def test_licence_is_chosen_or_follows_or_is_unknown(tmp_path: Path) -> None:
    assert licence_of(recipe_of()) == "unknown"
    assert licence_of(recipe_of(card={"license": "Apache-2.0"})) == "apache-2.0"
    for name, licence in (("a", "mit"), ("b", "mit"), ("c", "cc-by-4.0"), ("d", "")):
        (tmp_path / name).mkdir()
        header = f"license: {licence}\nbase_model: some/{name}" if licence else "tags: [x]"
        (tmp_path / name / "README.md").write_text(f"---\n{header}\n---\n# Base", "utf-8")

    def started(*names: str) -> dict[str, Any]:
        encoders = {str(number): str(tmp_path / name) for number, name in enumerate(names)}
        return recipe_of(model={"encoders": encoders})

    assert licence_of(started("a", "b")) == "mit" and base_models(started("a", "b")) == ["some/a", "some/b"]
    assert licence_of(started("a", "c")) == "unknown"  # they disagree
    assert licence_of(started("a", "d")) == "unknown" and base_models(started("d")) == []  # one does not say
    assert licence_of(recipe_of(start_from=str(tmp_path / "a" / "training" / "final"))) == "mit"  # a run's card
    assert base_models(recipe_of(start_from="outputs/none")) == []  # a folder, whatever it looks like


def test_what_the_recipe_says_of_its_card_wins() -> None:
    card = {"license": "other", "license_name": "mine", "license_link": "https://x.org", "datasets": "a/b"}
    data = card_metadata(recipe_of(card=card), {})
    assert (data.license, data.license_name, data.license_link) == ("other", "mine", "https://x.org")
    assert data.datasets == ["a/b"]


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"license": "apache"}, "card.license is 'apache', which is not in .* did you mean 'apache-2.0'?"),
        ({"license": "of my own"}, "take 'other' for one that it lacks"),
        ({"license": "other"}, "say which in card.license_name and card.license_link"),
        ({"base_model": "/people/me/x"}, "card.base_model has '/people/me/x', which is no id of the Hub"),
        ({"datasets": ["a/b", "c"]}, "card.datasets has 'c'"),
    ],
)
def test_card_section_is_checked(section: dict[str, Any], sentence: str) -> None:
    with pytest.raises(XlsrError, match=sentence):
        check_card_section(section)
    with pytest.raises(XlsrError, match=sentence):
        card_metadata(recipe_of(card=section), {})


RESULT = "- task: {type: x}\n    dataset: {type: a, name: b}\n    metrics: [{type: acc, value: %s}]"
INDEX = "model-index:\n- name: m\n  results:\n  %s"


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ("", "has no metadata"),
        ("---\n- a\n---\n", "are no keys with values"),
        ("---\na: [\n---\n", "README.md, line 2: the metadata are no YAML"),
        ("---\na: !!python/object/apply:os.getcwd []\n---\n", "are no YAML"),
        ("---\nlanguage: English\n---\n", "language has 'English'; write ISO 639 codes"),
        ("---\nlanguage: [no, 5]\n---\n", "language has 'False'"),  # YAML's Norwegian
        ("---\nlicense: mitt\n---\n", "license is 'mitt'"),
        ("---\nlicense: other\n---\n", "license_name and license_link"),
        ("---\ntags: ['a, b']\n---\n", "tags has 'a, b'"),
        ("---\ndatasets: [tsv]\n---\n", "datasets has 'tsv'"),
        ("---\nbase_model: ../x\n---\n", "base_model has '../x'"),
        ("---\npipeline_tag: Feature Extraction\n---\n", "pipeline_tag has"),
        (f"---\n{INDEX % '- task: {}'}\n---\n", "model-index lacks 'type'"),
        ("---\nmodel-index: 5\n---\n", "model-index is not a list"),
        (f"---\n{INDEX % (RESULT % '.nan')}\n---\n", "model-index has acc nan; give a finite number"),
    ],
)
def test_check_card_names_what_is_wrong(header: str, sentence: str) -> None:
    with pytest.raises(XlsrError, match=sentence):
        check_card(f"{header}# A model")


def test_check_card_takes_what_is_right() -> None:
    data = check_card(f"---\nlanguage: [en, zh-Hant, multilingual]\nlicense: MIT\n{INDEX % (RESULT % 0.5)}\n---\n# A")
    assert data["model-index"][0]["name"] == "m"


def test_widget_examples() -> None:
    for code, pair in EXAMPLES.items():
        assert len(pair) == len(set(pair)) == 2 and all(pair), code
    (both,) = widget("sentence-similarity", ["en", "fr", "tlh"]) or []
    assert both["source_sentence"] == EXAMPLES["en"][0] and both["sentences"] == list(EXAMPLES["fr"])
    (alone,) = widget("sentence-similarity", ["de"]) or []
    assert alone["sentences"] == list(EXAMPLES["de"])
    assert widget("sentence-similarity", ["tlh", "en"]) is None
    assert translation_pair(["tlh"]) == EXAMPLES["en"] and translation_pair(["de", "tlh"])[0] == EXAMPLES["de"][0]
    data = ModelCard(f"---\n{card_metadata(recipe_of(), {}).to_yaml()}\n---\n").data
    assert data.get("widget")[0]["sentences"] == list(EXAMPLES["fr"])
