"""Cards of runs: their text, and what their header takes from where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from card_helpers import SETTINGS
from huggingface_hub import ModelCard

from hf_xlsr.encoders.heads import HeadConfig, new_head
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.export.card import settings_block
from hf_xlsr.export.model_card import CardFacts, CardMetadata, card_header, card_text
from hf_xlsr.runs.card import card_facts, licence_of, render_card
from hf_xlsr.runs.methods import Method
from hf_xlsr.runs.recipe import load_runs, read_recipe, resolve
from hf_xlsr.runs.sections import Recipe
from hf_xlsr.utils.errors import XlsrError

METRICS = measured("bible", "tatoeba", ("en", "fr"), "test", {"accuracy": 0.875, "pairs": 1005})


def test_metadata_numbers_and_facts() -> None:
    text = render_card(load_runs("quickstart")[0], METRICS, SETTINGS)
    assert "| `bible-tatoeba/en-fr/test/accuracy` | 87.5 % |" in text
    for fact in ("| 1,005 |", "27,609", "290 s on cpu", "GPL-3", "mao2021lightweight"):
        assert fact in text

    data = ModelCard(text).data
    assert data.language == ["en", "fr"]
    assert data.library_name == "sentence-transformers"
    (result,) = data.eval_results
    assert (result.dataset_type, result.metric_type, result.metric_value) == ("bible-tatoeba", "accuracy", 0.875)


LIMIT = "only the languages above"


def test_limits_follow_from_the_weights_that_training_started_from() -> None:
    """A tuned encoder knows more languages than those of its training text; a new one does not."""
    (new,) = load_runs("quickstart")
    (tuned,) = load_runs("quickstart", ["--encoder", "me/multilingual"])
    assert LIMIT in render_card(new, METRICS, SETTINGS)
    assert LIMIT not in render_card(tuned, METRICS, SETTINGS)
    assert "weights that training started from" in " ".join(render_card(tuned, METRICS, SETTINGS).split())


def code_with_transformers(**settings: Any) -> str:
    """What a card says after `With transformers alone`; empty if it says nothing."""
    text = render_card(load_runs("quickstart")[0], METRICS, {**SETTINGS, **settings})
    return text.partition("With transformers alone")[2].partition("With transformers.js")[0]


@pytest.mark.parametrize(
    ("head", "pooled"),
    [
        (new_head(256), "(states * mask).sum(1) / mask.sum(1)"),
        (new_head(256, "cls"), "argmax(1)"),
        (new_head(256, "max"), ".amax(1)"),
        (new_head(256, "lasttoken"), "cumsum(1).argmax(1)"),
    ],
)
def test_code_pools_as_the_trained_head(head: HeadConfig, pooled: str) -> None:
    assert pooled in code_with_transformers(head=head)
    assert "functional.normalize" in code_with_transformers(head=head)
    assert "functional.normalize" not in code_with_transformers(head=head[:-1])


@pytest.mark.parametrize(
    "head",
    [
        new_head(256, "cls", dimension=256),
        new_head(256, ["cls", "mean"]),
        new_head(256, "weightedmean"),
        [{**new_head(256)[0], "include_prompt": False}],
        [],
    ],
)
def test_no_code_of_three_lines_for_other_heads(head: HeadConfig) -> None:
    assert code_with_transformers(head=head) == ""


def test_length_is_that_of_the_trained_model() -> None:
    text = render_card(load_runs("quickstart")[0], METRICS, SETTINGS)
    assert "max_length=77" in text
    assert "truncated to 77 tokens" in text
    assert "puts the prompt" not in text


def test_prompt_is_that_of_the_trained_model() -> None:
    text = render_card(load_runs("quickstart")[0], METRICS, {**SETTINGS, "prompt": "query: "})
    assert '`encode` puts the prompt "query: " before every text.' in text
    assert "query: The weather" in code_with_transformers(prompt="query: ")


@pytest.mark.parametrize(
    ("changes", "title", "folder"),
    [
        ([], "quickstart", "outputs/quickstart"),
        (["--languages", "en,de"], "lightweight", "outputs/quickstart"),
        (["--train", "own.tsv", "--languages", "en,fr", "--output_dir", "runs/support"], "support", "runs/support"),
        (["--data.train.path", "own.tsv", "--name", "ours"], "ours", "outputs/ours"),
    ],
)
def test_card_describes_the_model_that_was_trained(
    changes: list[str], title: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.tsv").write_text("en\tfr\none\tun\n", "utf-8")
    (run,) = load_runs("quickstart", changes)
    assert run.recipe.output_dir == folder

    text = render_card(run, METRICS, SETTINGS)
    assert f"\n# {title}\n" in text
    for fact in ("World English Bible", "the recipe `quickstart`"):
        assert (fact in text) == (title == "quickstart")


def run_of(name: str = "quickstart", **more: Any) -> Method:
    return resolve(read_recipe(name), more)


def recipe_of(name: str = "quickstart", **more: Any) -> Recipe:
    return run_of(name, **more).recipe


def facts_of(run: Method) -> CardFacts:
    return card_facts(run, Results(), SETTINGS)


def test_base_models_of_a_recipe() -> None:
    data = card_header(facts_of(run_of("moco_bert_en_zh")))
    assert data.base_model == ["google-bert/bert-base-uncased", "hfl/chinese-roberta-wwm-ext"]
    assert data.tags[-2:] == ["hf-xlsr", "dual_momentum"]

    mbert = facts_of(run_of("cmlm_f_mbert"))
    assert mbert.base_models == ["google-bert/bert-base-multilingual-cased"]


def test_datasets_of_a_recipe() -> None:
    glue = run_of("hictl_glue_mrpc")
    assert card_header(facts_of(glue)).datasets == ["nyu-mll/glue"]

    corpora = run_of()
    corpora.recipe.data.train = [{"corpus": "europarl"}, {"corpus": "bible"}, {"path": "some/file.tsv"}]
    assert card_header(facts_of(corpora)).datasets == ["Helsinki-NLP/europarl"]


def test_licence_of_a_recipe() -> None:
    assert licence_of(recipe_of()) == "unknown"
    assert licence_of(recipe_of(card={"license": "Apache-2.0"})) == "apache-2.0"


@pytest.fixture
def encoders(tmp_path: Path) -> Path:
    """Folders of encoders with cards: licences and base models."""
    headers = {
        "a": "license: mit\nbase_model: some/a",
        "b": "license: mit\nbase_model: some/b",
        "c": "license: cc-by-4.0\nbase_model: some/c",
        "d": "tags: [x]",
    }
    for name, header in headers.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text(f"---\n{header}\n---\n# Base", "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "licence", "models"),
    [
        ("ab", "mit", ["some/a", "some/b"]),
        ("ac", "unknown", ["some/a", "some/c"]),  # they disagree
        ("ad", "unknown", ["some/a"]),  # one does not say
        ("d", "unknown", []),
    ],
)
def test_licence_and_base_models_of_encoders(encoders: Path, names: str, licence: str, models: list[str]) -> None:
    run = run_of("moco_en_fr_open")
    run.recipe.model["encoders"] = {name: str(encoders / name) for name in names}
    assert licence_of(run.recipe) == licence
    assert facts_of(run).base_models == models


def test_licence_and_base_models_of_an_earlier_run(encoders: Path) -> None:
    assert licence_of(recipe_of(start_from=str(encoders / "a" / "training" / "final"))) == "mit"
    assert facts_of(run_of(start_from="outputs/none")).base_models == []  # a folder, whatever it looks like


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"license": "apache2"}, "apache2"),
    ({"datasets": ["a/b", "c d"]}, "c d"),
    ({"base_model": "../encoder"}, "../encoder"),
]


@pytest.mark.parametrize("make", [lambda card: CardMetadata(**card), lambda card: recipe_of(card=card)])
@pytest.mark.parametrize(("card", "value"), REFUSED)
def test_what_the_hub_would_refuse_is_an_error_before_a_run(make: Any, card: dict[str, Any], value: str) -> None:
    with pytest.raises(XlsrError) as raised:
        make(card)

    (name,) = card
    assert f"`{name}`" in str(raised.value)
    assert f"'{value}'" in str(raised.value)


def test_languages_are_codes_of_the_hub() -> None:
    facts = replace(facts_of(run_of()), languages=["pt-BR", "zh-Hans", "zh_Hant", "eng_Latn"])

    assert card_header(facts).language == ["pt", "zh", "en"]
    assert "zh-Hans" in card_text(facts)


@pytest.mark.parametrize(("pooling", "is_served"), [("mean", True), ("max", False), (("cls", "mean"), False)])
def test_card_says_what_other_servers_do_not_compute(pooling: Any, is_served: bool) -> None:
    facts = replace(facts_of(run_of()), head=new_head(256, pooling))

    assert ("text-embeddings-inference" not in card_text(facts)) == is_served


def test_block_of_settings_shows_what_is_set() -> None:
    recipe = {"method": "cmlm", "seed": 0, "loss": None, "model": {}, "data": {"train": "a.tsv", "limit": None}}
    block = settings_block(recipe).removeprefix("```yaml\n").removesuffix("\n```")
    assert yaml.safe_load(block) == {"method": "cmlm", "seed": 0, "data": {"train": "a.tsv", "limit": None}}


def test_recipe_overrides_metadata() -> None:
    card = {"license": "other", "license_name": "mine", "license_link": "https://x.org", "datasets": "a/b"}
    data = card_header(facts_of(run_of(card=card)))
    assert (data.license, data.license_name, data.license_link) == ("other", "mine", "https://x.org")
    assert data.datasets == ["a/b"]
