"""Recipes of `method: classification`: the paper's values, and that each runs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import ENGLISH, FRENCH, loaded, tiny_encoder
from recipe_helpers import mostly_slow, runs_of, value_of
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSequenceClassification, pipeline

from hf_xlsr.data.sources import as_list
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.modeling.hictl.modeling_classification import HictlForSequenceClassification
from hf_xlsr.runs.recipe import merge, resolve
from hf_xlsr.runs.train import train_recipe

# Section 4.2: "the same optimizer as pre-training and learning rate set as 2.5e-5. We set the batch size to 32". Section
# 4.1: Adam, linear decay, sequences of 128.
PAPER = {
    "training.learning_rate": 2.5e-5,
    "training.per_device_train_batch_size": 32,
    "training.lr_scheduler_type": "linear",
    "data.max_length": 128,
}
# In the order of table 2.
XNLI = "en fr es de el bg ru tr ar vi th zh hi sw ur".split()
BASE = {"model.start": "FacebookAI/xlm-roberta-base"}
NLI = {"task.texts": "pair", "task.labels": ["entailment", "neutral", "contradiction"], "task.metrics": None}
LOCAL = {"model.start": "${HF_XLSR_ENCODERS}/e5-small"}
PLAIN = {"task.texts": "pair", "task.metrics": None, "evaluation.protocol": "fine-tuning", "languages": ["en"]}
TWO = {"task.metrics": ["accuracy", "f1"]}
STS = {"task.scores": [0, 5], "task.labels": None, "task.metrics": ["pearson", "spearman"]}
ALL = {"languages": XNLI}
TABLE: dict[str, dict[str, Any]] = {
    # Table 3.
    "hictl_glue_qqp": {**BASE, **PLAIN, **TWO, "task.labels": ["not_duplicate", "duplicate"], "data.overlap": "row"},
    "hictl_glue_qnli": {**BASE, **PLAIN, "task.labels": ["entailment", "not_entailment"], "data.overlap": "text"},
    "hictl_glue_sst2": {**BASE, **PLAIN, "task.labels": ["negative", "positive"], "task.texts": "single"},
    "hictl_glue_mrpc": {**BASE, **PLAIN, **TWO, "task.labels": ["not_equivalent", "equivalent"]},
    "hictl_glue_mnli": {**BASE, **PLAIN, **NLI},
    "hictl_glue_stsb": {**BASE, **PLAIN, **STS},
    # Table 2.
    "hictl_xnli_cross_lingual": {**BASE, **NLI, **ALL, "evaluation.protocol": "cross-lingual-test"},
    "hictl_xnli_translate_test": {**BASE, **NLI, **ALL, "evaluation.protocol": "translate-test"},
    **{
        f"hictl_xnli_translate_train/{language}": {
            **BASE,
            **NLI,
            "languages": [language],
            "evaluation.protocol": "translate-train",
            "training.metric_for_best_model": f"xnli-translate-train/{language}/dev/accuracy",
        }
        for language in XNLI
    },
    "hictl_xnli_translate_train_all": {**BASE, **NLI, **ALL, "evaluation.protocol": "translate-train-all"},
    # The same on what can be had here.
    "hictl_xnli_local_cross_lingual": {**LOCAL, **NLI, "evaluation.protocol": "cross-lingual-test"},
    "hictl_xnli_local_translate_train_all": {**LOCAL, **NLI, "evaluation.protocol": "translate-train-all"},
    "hictl_glue_local/mrpc": {**LOCAL, **PLAIN, **TWO},
    "hictl_glue_local/rte": {**LOCAL, **PLAIN},
    "hictl_glue_local/cola": {**LOCAL, **PLAIN, "task.texts": "single", "task.metrics": ["matthews", "accuracy"]},
    "hictl_glue_local/sst2": {**LOCAL, **PLAIN, "task.texts": "single"},
    "hictl_glue_local/stsb": {**LOCAL, **PLAIN, **STS},
}
SHRINK = """
training:
  max_steps: 2
  num_train_epochs: 1
  per_device_train_batch_size: 8
  logging_steps: 1
  eval_strategy: steps
  eval_steps: 2
  save_strategy: steps
  save_steps: 2
  precision: float32
  disable_tqdm: true
data: {max_length: 32, held_out: []}
"""
TOY = """
method: classification
languages: [en, fr]
task: {{labels: [no, yes]}}
data:
  train: {{path: "{folder}/train-pair-{{lang}}.tsv", languages: [en]}}
  dev: {{toy: {{path: "{folder}/pair-{{lang}}.tsv", languages: [en]}}}}
  test: {{toy: {{path: "{folder}/pair-{{lang}}.tsv"}}}}
  max_length: 32
model: {{start: "{start}"}}
training: {{max_steps: 6, per_device_train_batch_size: 8, learning_rate: 1e-3, logging_steps: 2, save_steps: 2,
            precision: float32, disable_tqdm: true}}
"""


RUNS = {run["name"]: run for run in runs_of("classification") if run["name"].startswith(("hictl_glue", "hictl_xnli"))}
# The runs of translate-train differ in their language alone.
RUNNABLE = [
    run for name, run in RUNS.items() if not name.startswith("hictl_xnli_translate_train/") or name.endswith("/sw")
]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained encoder whose tokenizer frames sentences and pairs."""
    folder = tmp_path_factory.mktemp("start")
    rng = random.Random(1)
    texts = [" ".join(rng.choices(words, k=5)) for words in (ENGLISH, FRENCH) for _ in range(60)]
    tokenizer = train_tokenizer(texts, vocab_size=90, algorithm="bpe", frame=True, max_length=32)
    torch.manual_seed(0)
    encoder_from_config(AutoConfig.for_model(**tiny_encoder(len(tokenizer)))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of each kind in each language; labels are 0 and 1, which every task of the recipes knows."""
    folder, rng = tmp_path_factory.mktemp("toy"), random.Random(2)
    for language in {*XNLI, "nl"}:
        for kind, columns in (("pair", ["first", "second"]), ("single", ["text"])):
            for part in ("", "train-"):
                lines = ["\t".join([*columns, "label"])]
                for number in range(24):
                    texts = [" ".join([*rng.choices(ENGLISH, k=4), language]) for _ in columns]
                    lines.append("\t".join([*texts, str(number % 2)]))
                (folder / f"{part}{kind}-{language}.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    return folder


def shrunk(run: dict[str, Any], start: Path, toy: Path, output: Path) -> dict[str, Any]:
    """The run on toy data, from a tiny encoder: the same sets, languages and kind of rows."""

    def small(sources: Any, kind: str = "") -> list[dict[str, Any]]:
        path = str(toy / f"{kind}{run['task']['texts']}-{{lang}}.tsv")
        return [
            {"path": path, **{key: value for key, value in source.items() if key == "languages"}}
            for source in as_list(sources)
        ]

    recipe = merge(run, yaml.safe_load(SHRINK))
    recipe["data"]["train"] = small(run["data"]["train"], "train-")
    for split in ("dev", "test"):
        recipe["data"][split] = {name: small(sources) for name, sources in (run["data"][split] or {}).items()}
    recipe["model"]["start"], recipe["output_dir"] = str(start), str(output)
    return recipe


def test_table_has_every_recipe() -> None:
    assert RUNS.keys() == TABLE.keys()


@pytest.mark.parametrize("name", RUNS)
def test_paper_values(name: str) -> None:
    for key, value in {**PAPER, **TABLE[name]}.items():
        found = value_of(RUNS[name], key)
        assert found == (pytest.approx(value) if isinstance(value, float) else value), key
    assert "weight_decay" not in RUNS[name]["training"]  # Adam: none by default


def test_sources_of_xnli_settings() -> None:
    data = {
        name: RUNS[f"hictl_xnli_{name}"]["data"] for name in ("cross_lingual", "translate_test", "translate_train_all")
    }
    data["fr"] = RUNS["hictl_xnli_translate_train/fr"]["data"]
    for name, languages in (("cross_lingual", ["en"]), ("translate_test", ["en"]), ("translate_train_all", None)):
        assert data[name]["train"]["languages"] == data[name]["dev"]["xnli"]["languages"] == languages
    assert data["fr"]["train"]["config"] == data["fr"]["dev"]["xnli"]["config"] == "{lang}"
    assert {part["test"]["xnli"]["split"] for name, part in data.items() if name != "translate_test"} == {"test"}
    assert data["translate_test"]["test"]["xnli"]["path"] == "${XNLI_TRANSLATE_TEST}/{lang}.tsv"


def test_local_sets_are_apart() -> None:
    for name, run in RUNS.items():
        if "local" in name:
            data = run["data"]
            parts = [as_list(data["train"]), *(as_list(s) for split in ("dev", "test") for s in data[split].values())]
            keys = ["hash_split", "where", "path"]
            chosen = [{(key, str(source.get(key))) for key in keys} for part in parts for source in part]
            assert len({frozenset(one) for one in chosen}) == len(chosen), name
            assert len(data["held_out"]) >= 30 and data["overlap"] == "text"
            assert run["training"]["load_best_model_at_end"] and "/dev/" in run["training"]["metric_for_best_model"]


@pytest.mark.parametrize("run", mostly_slow(RUNNABLE, "hictl_glue_stsb", "hictl_xnli_local_cross_lingual"))
def test_recipe_runs(run: dict[str, Any], start: Path, toy: Path, tmp_path: Path) -> None:
    result = train_recipe(resolve(shrunk(run, start, toy, tmp_path / "run")))
    assert not result.stopped
    protocol, metrics = run["evaluation"]["protocol"], run["task"]["metrics"] or ["accuracy"]
    for split in ("dev", "test"):
        for data, sources in (run["data"][split] or {}).items():
            languages = [tag for source in as_list(sources) for tag in source.get("languages") or run["languages"]]
            for metric in metrics:
                keys = [f"{data}-{protocol}/{language}/{split}/{metric}" for language in languages]
                if len(languages) > 1:
                    mean = sum(result.metrics[key] for key in keys) / len(keys)
                    keys.append(f"{data}-{protocol}/mean-of-{len(languages)}/{split}/{metric}")
                    assert result.metrics[keys[-1]] == pytest.approx(mean)
                assert set(keys) <= result.metrics.keys()
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "model")
    assert isinstance(model, HictlForSequenceClassification)
    assert list(model.config.id2label.values()) == (run["task"]["labels"] or ["LABEL_0"])
    saved = json.loads((tmp_path / "run" / "results.json").read_text("utf-8"))
    assert saved["metrics"] == result.metrics
    hashed = {f"{data}/{split}" for split in ("dev", "test") for data in run["data"][split] or {}}
    assert saved["data_sha256"].keys() == hashed
    card = (tmp_path / "run" / "model" / "README.md").read_text("utf-8")
    assert 'pipeline("text-classification"' in card and "pipeline_tag: text-classification" in card
    assert str(tmp_path.parent) not in card  # no folder of this machine


# Runs on a recipe of one's own.


@pytest.fixture
def recipe(start: Path, toy: Path, tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text(TOY.format(folder=toy, start=start), "utf-8")
    return path


def run(recipe: Path, output: Path, *options: str) -> dict[str, torch.Tensor]:
    (resolved,) = loaded(str(recipe), ["--output_dir", str(output), *options])
    train_recipe(resolve(resolved))
    final = output / "training" / "final"
    return load_file(
        next(final / name for name in ("model.safetensors", "adapter_model.safetensors") if (final / name).is_file())
    )


def test_start_from_a_run(recipe: Path, tmp_path: Path) -> None:
    first = run(recipe, tmp_path / "first")
    second = run(recipe, tmp_path / "second", "--model.start", str(tmp_path / "first"), "--learning_rate", "1e-12")
    for name, value in first.items():
        if name.startswith("encoder."):
            torch.testing.assert_close(second[name], value, msg=name)
    assert not torch.allclose(first["classifier.weight"], second["classifier.weight"])
    (resolved,) = loaded(str(recipe))
    code = resolve(resolved).card_use().replace("path/to/this/folder", str(tmp_path / "first" / "model"))
    exec(code, {})
    classify = pipeline("text-classification", model=str(tmp_path / "first" / "model"))
    assert classify({"text": "one red", "text_pair": "two"})["label"] in ("no", "yes")
