"""Reading, merging and validating recipes."""

from __future__ import annotations

import json
import zlib
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import tiny_encoder
from transformers import AutoConfig

from hf_xlsr.encoders.heads import pooling_name
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.export import to_sentence_transformer
from hf_xlsr.runs.methods import METHODS
from hf_xlsr.runs.methods.base import TrainingData
from hf_xlsr.runs.own_sources import guard_source, own_source
from hf_xlsr.runs.recipe import load_runs, merge
from hf_xlsr.runs.sections import refused, training_section
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.yaml import parse_yaml


def write(folder: Path, text: str, name: str = "mine") -> str:
    path = folder / f"{name}.yaml"
    path.write_text(text, "utf-8")
    return str(path)


def test_overrides_by_full_and_short_name() -> None:
    words = ["--learning_rate", "5e-4", "--model.alignment_temperature=0.1", "--seed", "7", "--languages", "[en, no]"]
    (run,) = load_runs("quickstart", [*words, "--bucket-by-length", "false", "--hidden_size", "32"])
    recipe = run.recipe
    assert recipe.training["learning_rate"] == 5e-4 and recipe.model["alignment_temperature"] == 0.1
    assert recipe.seed == 7 and recipe.languages == ["en", "no"]  # Norwegian, not False
    assert recipe.training["bucket_by_length"] is False and recipe.model["encoder"]["hidden_size"] == 32
    (run,) = load_runs("quickstart", ["--data.train.path", "pairs.tsv", "--model.encoder.path", "some/folder"])
    assert run.recipe.data.train == {"path": "pairs.tsv"}
    with pytest.raises(XlsrError, match="some/folder"):  # an encoder brings its tokenizer
        run.given_tokenizer()
    (run,) = load_runs("moco_en_fr_open", ["--model.encoders.fr", "mine"])
    assert run.recipe.model["encoders"] == {"en": "${HF_XLSR_ENCODERS}/minilm-en", "fr": "mine"}


def test_an_encoder_of_the_user_replaces_tokenizer_and_weights(tmp_path: Path) -> None:
    model = "model: {encoder: {path: old}}\ntokenizer: {path: old}\nstart_from: old"
    path = write(tmp_path, f"method: lightweight\nlanguages: [en, fr]\n{model}")
    for words, expected in ((["--seed", "2"], "old"), (["--encoder", "new"], None)):
        (run,) = load_runs(path, words)
        assert [run.recipe.tokenizer.path, run.recipe.start_from] == [expected, expected]


def test_no_sentence_occurs_twice_in_a_drawn_dev_set(tmp_path: Path) -> None:
    sources = [f"word {number}" for number in range(200)]
    rows = [f"{source}\tmot {copy} {number}" for copy in range(3) for number, source in enumerate(sources)]
    (tmp_path / "pairs.tsv").write_text("\n".join(["en\tfr", *rows]) + "\n", "utf-8")
    train = ["--train", str(tmp_path / "pairs.tsv"), "--languages", "en,fr"]
    (run,) = load_runs("finetune", ["--encoder", "x", *train])

    dev = [row["source"] for row in run.evaluation_sets()["dev"]]

    held = [source for source in sources if zlib.crc32(source.encode()) % 10 == 0]
    assert dev == held and len(held) > 10


@pytest.mark.parametrize("splits", [("train",), ("train", "validation")])
def test_the_drawn_dev_set_of_a_dataset_is_of_its_training_split(splits: tuple[str, ...], tmp_path: Path) -> None:
    for split in splits:
        rows = [{"en": f"{split} {number}", "fr": f"mot {number}"} for number in range(300)]
        (tmp_path / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    (run,) = load_runs("finetune", ["--encoder", "x", "--train", str(tmp_path), "--languages", "en,fr"])

    dev = [row["source"] for row in run.evaluation_sets()["dev"]]

    assert len(dev) > 10
    assert all(source.startswith("train ") for source in dev)


@pytest.mark.parametrize(
    ("header", "languages", "expected"),
    [
        ("en\tde\tpt_BR", ["en", "de", "pt"], {"parallel": {"en": "en", "de": "de", "pt": "pt_BR"}}),
        ("en\tpt_BR", ["en", "pt"], {"columns": {"source": "en", "target": "pt_BR"}, "languages": ["en", "pt"]}),
        ("en\tfrench", ["en", "fr"], {}),
    ],
)
def test_columns_of_own_tables(header: str, languages: list[str], expected: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text(f"{header}\n" + "\t".join("a" * len(header.split())), "utf-8")
    assert own_source(path, languages) == {"path": str(path), **expected}
    turned = own_source(path, languages, f"source={languages[1]},target=en")
    assert turned["languages"] == [languages[1], "en"]  # a column's name is its language
    assert "languages" not in own_source(path, languages, "source=src,target=xx")
    pair = {"columns": {"source": "en", "target": "fr"}, "languages": ["en", "fr"]}
    path.write_text("id\ten\tfr\n1\ta\tb\n", "utf-8")
    for wanted in (["fr", "en"], ["en", "de"]):
        assert guard_source(path, wanted) == {"path": str(path), **pair}
    assert guard_source("bible", languages) == {"corpus": "bible"}


def test_guard_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    guards = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.tsv").write_text("en\tfr\na\tb\n", "utf-8")
        guards += ["--guard", str(tmp_path / folder / "same.tsv")]
    (run,) = load_runs("finetune", ["--encoder", "x", "--languages", "en,fr", "--train", "t.tsv", *guards])

    with pytest.raises(XlsrError, match="'same'"):
        run.guards()


@pytest.mark.parametrize("name", ["finetune", "start_lightweight", "start_distillation", "start_cmlm"])
def test_pooling_of_a_given_encoder(name: str, tmp_path: Path, tokenizer: Any) -> None:
    encoder = encoder_from_config(AutoConfig.for_model(**tiny_encoder(len(tokenizer))))
    to_sentence_transformer(encoder, tokenizer, pooling="cls").save(str(tmp_path / "given"))
    words = ["--encoder", str(tmp_path / "given"), "--languages", "en,fr", "--train", "t.tsv"]
    data = TrainingData({}, tokenizer)
    for pooling_words, pooling in (([], "cls"), (["--model.pooling", "max"], "max")):
        (run,) = load_runs(name, [*words, *pooling_words])
        run.teacher = SimpleNamespace(dim=16)  # of a distillation
        config = run.build_model(data).config
        head = config.head if hasattr(config, "text_config") else config.heads["shared"]
        assert pooling_name(head) == pooling


def test_sets_of_one_name_are_one_set() -> None:
    words = ["--encoder", "x", "--languages", "en", "--train", "t.tsv", "--test", "a/test.tsv", "--test", "b/test.tsv"]
    (run,) = load_runs("start_classification", words)
    assert [source["path"] for source in run.recipe.data.test["test"]] == ["a/test.tsv", "b/test.tsv"]


def test_stages_start_from_the_stage_before(tmp_path: Path) -> None:
    stages = "stages: [{name: a}, {name: b}, {name: c, set: {start_from: other}}]"
    runs = load_runs(write(tmp_path, f"base: quickstart\n{stages}"), only=["b", "c"])
    assert [run.recipe.start_from for run in runs] == ["outputs/mine/a", "other"]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--learning_rte", "1"], "did you mean --learning_rate?"),
        (["--temperature", "1"], "temperature"),
        (["--seed"], "--seed"),
        (["--seed", "x"], "seed is 'x'"),
    ],
)
def test_override_refusals(words: list[str], key: str) -> None:
    with pytest.raises(XlsrError) as caught:
        load_runs("quickstart", words)
    assert key in str(caught.value)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("modle: {}", "unknown key 'modle'; did you mean 'model'"),
        ("model: {poling: mean}", "unknown key 'model.poling'; did you mean 'pooling'"),
        ("model: {encoder: {hiden_size: 8}}", "'model.encoder.hiden_size'; did you mean 'hidden_size'"),
        ("model: {normalize: false}", "unknown key 'model.normalize'"),  # `export.normalize` is the one key
        ("model: {encoder_settings: {}}", "unknown key 'model.encoder_settings'"),
        ("data: {train: {pth: x}}", "data.train: unknown key 'pth'; did you mean 'path'"),
        ("training: {hub_token: hf_secret}", "training.hub_token"),
        ("method: lightwight", "did you mean 'lightweight'"),
        ("languages: [en, fr]", "`method`"),
        ("base: quikstart", "did you mean 'quickstart'"),
        ("base: quickstart\nruns: [{name: a}]\nstages: [{name: a}]", "runs and stages"),
        ("base: quickstart\nseed: 3\nseed: 4", "line 3, column 1"),
        ("base: quickstart\nname: ../out", "../out"),
        ("- base: quickstart", "list"),
        ("data: {max_length: 0}", "data.max_length"),
    ],
)
def test_recipe_refusals(text: str, key: str, tmp_path: Path) -> None:
    section = text.split(":")[0] in ("modle", "model", "data", "training")
    with pytest.raises(XlsrError) as caught:
        load_runs(write(tmp_path, f"method: lightweight\nlanguages: [en, fr]\n{text}" if section else text))
    assert key in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("below", "above", "merged"),
    [
        ({"path": "a", "split": "dev"}, {"corpus": "b"}, {"corpus": "b"}),
        ({"corpus": "a", "split": "dev"}, {"path": "b"}, {"path": "b"}),
        ({"corpus": "a", "split": "dev"}, {"corpus": "b"}, {"corpus": "b", "split": "dev"}),
        ({"path": "a", "split": "dev"}, {"path": "b"}, {"path": "b", "split": "dev"}),
    ],
)
def test_source_of_another_kind_inherits_nothing(below: Any, above: Any, merged: Any) -> None:
    assert merge({"train": below}, {"train": above}) == {"train": merged}


@pytest.mark.parametrize(
    ("name", "key"), [("cmlm_open", "text"), ("hictl_open", "monolingual"), ("quickstart", "train")]
)
def test_other_training_data_have_no_description(name: str, key: str) -> None:
    described, changed = load_runs(name)[0], load_runs(name, [f"--data.{key}", "mine.tsv"])[0]
    assert described.recipe.description
    assert not changed.recipe.description


OWN_WORDS = {"--encoder": "x", "--languages": "en,fr", "--train": "{path: t.tsv, limit: 5}", "--teacher.path": "y"}


@pytest.mark.parametrize("missing", ["--encoder", "--languages", "--teacher.path"])
def test_incomplete_recipe_names_what_it_needs(missing: str) -> None:
    words = [word for option in OWN_WORDS.items() if option[0] != missing for word in option]
    (run,) = load_runs("start_distillation", words)
    with pytest.raises(XlsrError, match=missing):
        run.check_complete()


def test_own_source_with_keys() -> None:
    words = [word for option in OWN_WORDS.items() for word in option]
    (run,) = load_runs("start_distillation", words)
    run.check_complete()
    (source,) = run.sources("train")
    assert (source.path, source.limit) == ("t.tsv", 5)


def test_yaml_reads_numbers_and_languages_as_meant() -> None:
    assert parse_yaml("[1e-3, 2E5, no, yes, true, 1.5, on]", "x") == [1e-3, 2e5, "no", "yes", True, 1.5, "on"]
    assert parse_yaml("{day: 2024-05-01}", "x") == {"day": "2024-05-01"}
    # A key that `<<` brings may be written again.
    assert parse_yaml("a: &a {p: 1}\nb: &b {<<: *a, p: 2}\nc: {<<: *b, p: 3}", "x")["c"] == {"p": 3}


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--load_best_model_at_end", "true", "--eval_strategy", "steps", "--eval_steps", "0.5"], "training"),
        (["--model.alignment_weight", "-1"], "alignment_weight"),
    ],
)
def test_arguments_and_config_are_made_before_the_folder(
    words: list[str], key: str, write_pairs: Any, tmp_path: Path
) -> None:
    data, model = f"data: {{train: {{path: {write_pairs()}}}}}", f"model: {{encoder: {tiny_encoder(90)}}}"
    path = write(tmp_path, f"method: lightweight\nlanguages: [en, fr]\n{data}\n{model}\n")
    (run,) = load_runs(path, ["--output_dir", str(tmp_path / "run"), *words])
    with pytest.raises(XlsrError, match=key):
        train_recipe(run)
    assert not (tmp_path / "run").exists()


def test_every_key_has_a_meaning_and_a_valid_default() -> None:
    for method in METHODS.values():
        assert refused(method.arguments_class).keys() <= {field.name for field in fields(method.arguments_class)}
        sections = [method.recipe_class, method.model_section, training_section(method.arguments_class)]
        sections += [field.annotation for field in method.recipe_class.model_fields.values()]
        for section in sections:
            for name, field in getattr(section, "model_fields", {}).items():
                explained = field.description or hasattr(field.annotation, "model_fields") or name == "method"
                assert explained, (method, name)
