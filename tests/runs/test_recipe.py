"""Reading, merging and validating recipes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import tiny_encoder

from hf_xlsr.data.sources import as_list, open_source
from hf_xlsr.runs.methods import METHODS
from hf_xlsr.runs.recipe import load_runs, parse_yaml
from hf_xlsr.runs.sections import refused, training_section
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.utils.errors import XlsrError


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
    assert run.recipe.settings()["tokenizer"]["path"] == "some/folder"  # an encoder brings its tokenizer
    (run,) = load_runs("moco_en_fr_open", ["--model.encoders.fr", "mine"])
    assert run.recipe.model["encoders"] == {"en": "${HF_XLSR_ENCODERS}/minilm-en", "fr": "mine"}


@pytest.mark.parametrize("language", ["fr", "de"])
def test_sources_of_open_recipes_open(language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_XLSR_DATA", str(tmp_path))
    (run,) = load_runs(f"lightweight_en_{language}_open")
    data = run.recipe.data
    columns = ["en", "xx", "fr", "de", "md5", "doc", "surah", "lang", "set", "src_lang", "english", "text", "book"]
    for source in [*data.train, data.dev, data.test]:
        if "path" not in source:
            continue
        file = Path(source["path"].replace("${HF_XLSR_DATA}", str(tmp_path)))
        file.parent.mkdir(parents=True, exist_ok=True)
        chosen = {name: as_list(value)[0] for name, value in source.get("where", {}).items()}
        rows = [{name: f"{name} {index}" for name in columns} | chosen for index in range(300)]
        pq.write_table(pa.Table.from_pylist(rows), file)
        read = list(open_source(source, languages=run.recipe.languages, split="train"))
        assert read and set(read[0]) == {"source", "target", "source_lang", "target_lang"}
        assert len(read) < 50 if source.get("hash_split") == "held" else len(read) > 250


def test_data_from_another_method() -> None:
    french, german, lightweight = (
        load_runs(name)[0].recipe for name in ("moco_en_fr_open", "moco_en_de_open", "lightweight_en_fr_open")
    )
    assert french.data.test == lightweight.data.test != german.data.test
    assert german.data.held_out == french.data.held_out == lightweight.data.held_out
    assert french.method == "dual_momentum" and german.data.max_length == 64
    assert german.model["queue_size"] == french.model["queue_size"]
    assert sorted(german.model["encoders"]) == ["de", "en"]  # the French one is gone


def test_runs_have_their_own_folders() -> None:
    runs = load_runs("lightweight_ablation_layers", ["--seed", "3"], only=["layers-1", "layers-6"])
    assert [run.recipe.model["encoder"]["num_hidden_layers"] for run in runs] == [1, 6]
    assert [run.recipe.seed for run in runs] == [3, 3]
    assert [Path(run.recipe.output_dir).name for run in runs] == ["layers-1", "layers-6"]


def test_stages_start_from_the_stage_before(tmp_path: Path) -> None:
    stages = "stages: [{name: a}, {name: b}, {name: c, set: {start_from: other}}]"
    runs = load_runs(write(tmp_path, f"base: quickstart\n{stages}"), only=["b", "c"])
    assert [run.recipe.start_from for run in runs] == ["outputs/mine/a", "other"]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--learning_rte", "1"], "did you mean 'training.learning_rate'"),
        (["--temperature", "1"], "temperature"),
        (["--seed"], "--seed"),
        (["seed", "1"], "'seed'"),
        (["--seed", "[1"], "--seed line 1, column 3"),
        (["--languages", "[en]"], "languages"),
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
        ("model: {encoder: {model_type: brt}}", "'brt'; did you mean 'bert'"),
        ("model: {encoder: bert}", "model.encoder"),
        ("data: {train: {pth: x}}", "data.train: unknown key 'pth'; did you mean 'path'"),
        ("data: {train: [{path: a}, 3]}", "data.train"),
        ("data: {train: {corpus: bible, columns: 'a=b'}}", "'columns'"),
        ("data: {cleaning: normalize}", "data.cleaning"),
        ("overwrite: no", "overwrite"),
        ("training: {max_steps: -5}", "training.max_steps"),
        ("training: {mixing: equl}", "training.mixing"),
        ("training: {hub_token: hf_secret}", "training.hub_token"),
        ("training: {fp16: true}", "training.fp16"),
        ("training: {per_device_eval_batch_size: 4}", "training.per_device_eval_batch_size"),
        ("card: {licence: mit}", "card.licence"),
        ("method: lightwight", "did you mean 'lightweight'"),
        ("languages: [en, fr]", "`method`"),
        ("a: [1", "line 1"),
        ("- 1", "mapping"),
        ("base: quikstart", "did you mean 'quickstart'"),
        ("base: [quickstart, moco_en_de_open]", "was not found"),
        ("data_from: 5\nmethod: lightweight", "'5'"),
        ("base: quickstart\nruns: [{name: a, sett: {seed: 5}}]", "sett"),
        ("base: quickstart\nruns: [{name: 1}, {name: '1'}]", "'1'"),
        ("base: quickstart\nruns: [{name: a}]\nstages: [{name: a}]", "runs and stages"),
        ("base: quickstart\nseed: 3\nseed: 4", "line 3, column 1"),
        ("base: quickstart\nname: ../out", "../out"),
    ],
)
def test_recipe_refusals(text: str, key: str, tmp_path: Path) -> None:
    section = text.split(":")[0] in ("modle", "model", "data", "overwrite", "training", "card")
    with pytest.raises(XlsrError) as caught:
        load_runs(write(tmp_path, f"method: lightweight\nlanguages: [en, fr]\n{text}" if section else text))
    assert key in str(caught.value) and "\n" not in str(caught.value)


def test_base_cycle_and_missing_recipes(tmp_path: Path) -> None:
    other = write(tmp_path, f"method: lightweight\ndata_from: {tmp_path}/one.yaml\n", "other")
    one = write(tmp_path, f"base: {other}\n", "one")
    (tmp_path / "latin.yaml").write_bytes("description: \xdcbung".encode("latin-1"))
    for name, only, key in [
        (one, None, "other.yaml"),
        (str(tmp_path / "latin.yaml"), None, "latin"),
        ("quikstart", None, "quickstart"),
        ("gone.yaml", None, "gone.yaml"),
        ("lightweight_ablation_layers", ["layer-1"], "layers-1"),
        ("quickstart", ["x"], "--only"),
    ]:
        with pytest.raises((XlsrError, FileNotFoundError), match=key):
            load_runs(name, only=only)


def test_yaml_reads_numbers_and_languages_as_meant() -> None:
    assert parse_yaml("[1e-3, 2E5, no, yes, true, 1.5, on]", "x") == [1e-3, 2e5, "no", "yes", True, 1.5, "on"]
    assert parse_yaml("{day: 2024-05-01}", "x") == {"day": "2024-05-01"}
    # A key that `<<` brings may be written again.
    assert parse_yaml("a: &a {p: 1}\nb: &b {<<: *a, p: 2}\nc: {<<: *b, p: 3}", "x")["c"] == {"p": 3}


def test_names_that_yaml_reads_as_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "base: quickstart\nruns: [{name: 1, set: {seed: 1}}, {name: 2024-05-01, set: {seed: 2}}]")
    assert [run.recipe.name for run in load_runs(path)] == ["mine/1", "mine/2024-05-01"]
    assert [run.recipe.seed for run in load_runs(path, only=["1"])] == [1]
    (run,) = load_runs(write(tmp_path, "base: cmlm_base\nname: 7\nlanguages: en"))
    assert run.recipe.languages == ["en"] and run.recipe.name == "7"


def test_values_that_fit(tmp_path: Path) -> None:
    text = """method: lightweight
languages: [en, fr]
training: {learning_rate: 1, warmup_steps: 0.1, eval_strategy: no, save_total_limit: null, report_to: [none],
  lr_scheduler_kwargs: {a: 1}, fsdp: true, include_num_input_tokens_seen: all}
data: {train: [a.tsv, {path: b.tsv, columns: {source: 0}}], cleaning: {normalize: null}, limit: null}
model: {encoder: {hidden_size: 64, hidden_dropout_prob: 0}}
evaluation:
"""
    (run,) = load_runs(write(tmp_path, text))
    assert run.recipe.training["learning_rate"] == 1 and run.recipe.data.max_length == 200
    assert set(run.recipe.card.model_dump().values()) == {None}


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--load_best_model_at_end", "true", "--eval_strategy", "steps", "--eval_steps", "0.5"], "training"),
        (["--model.alignment_weight", "-1"], "alignment_weight"),
        (["--optim", "adamw_torc"], "training"),
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
        sections += [part.annotation for part in method.recipe_class.model_fields.values()]
        for section in sections:
            for name, field in getattr(section, "model_fields", {}).items():
                explained = field.description or hasattr(field.annotation, "model_fields") or name == "method"
                assert explained, (method, name)


def test_defaults_of_methods_are_their_own() -> None:
    lengths = {name: method.recipe_class.model_fields["data"].default.max_length for name, method in METHODS.items()}
    assert lengths["lightweight"] == 200 and lengths["translation"] == lengths["classification"] == 128
    first, second = (load_runs("quickstart")[0].recipe for _ in range(2))
    first.data.held_out.append("x")
    assert second.data.held_out == []
