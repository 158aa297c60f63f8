"""Recipes of `method: classification`: the paper's values, and that each runs."""

from __future__ import annotations

import json
import random
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ENGLISH, tiny_encoder
from hictl_helpers import framed_tokenizer
from recipe_helpers import TWO_STEPS, assert_values, runs_of
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSequenceClassification, pipeline

from hf_xlsr.data.sources import as_list
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
LOCAL = {"model.start": "${HF_XLSR_ENCODERS}/e5-small"}
NLI = {"task.texts": "pair", "task.labels": ["entailment", "neutral", "contradiction"], "task.metrics": None}
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
for xnli_language in XNLI:
    TABLE[f"hictl_xnli_translate_train/{xnli_language}"] = {
        **BASE,
        **NLI,
        "languages": [xnli_language],
        "evaluation.protocol": "translate-train",
        "training.metric_for_best_model": f"xnli-translate-train/{xnli_language}/dev/accuracy",
    }

RUNS = {run["name"]: run for run in runs_of("classification") if run["name"].startswith(("hictl_glue", "hictl_xnli"))}
# The runs of translate-train differ in their language alone.
SAME_AS_SWAHILI = {f"hictl_xnli_translate_train/{language}" for language in XNLI if language != "sw"}
RUNNABLE = [run for name, run in RUNS.items() if name not in SAME_AS_SWAHILI]
LOCAL_RUNS = [name for name in RUNS if "local" in name]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained encoder whose tokenizer frames sentences and pairs."""
    folder = tmp_path_factory.mktemp("start")
    tokenizer = framed_tokenizer()
    torch.manual_seed(0)
    config = AutoConfig.for_model(**tiny_encoder(len(tokenizer)))
    encoder_from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of each kind in each language; labels are 0 and 1, which every task of the recipes knows."""
    folder = tmp_path_factory.mktemp("toy")
    rng = random.Random(2)

    def text(language: str) -> str:
        words = rng.choices(ENGLISH, k=4)
        return " ".join([*words, language])

    for language in {*XNLI, "nl"}:
        for prefix in ("", "train-"):
            pairs = ["first\tsecond\tlabel"]
            texts = ["text\tlabel"]
            for label in [0, 1] * 12:
                pairs.append(f"{text(language)}\t{text(language)}\t{label}")
                texts.append(f"{text(language)}\t{label}")
            (folder / f"{prefix}pair-{language}.tsv").write_text("\n".join(pairs), "utf-8")
            (folder / f"{prefix}single-{language}.tsv").write_text("\n".join(texts), "utf-8")
    return folder


def shrunk(run: dict[str, Any], start: Path, toy: Path, output: Path) -> dict[str, Any]:
    """The run on toy data, from a tiny encoder: the same sets, languages and kind of rows."""
    texts = run["task"]["texts"]

    def toy_sources(sources: Any, prefix: str = "") -> list[dict[str, Any]]:
        path = str(toy / f"{prefix}{texts}-{{lang}}.tsv")
        return [{"path": path, "languages": source.get("languages")} for source in as_list(sources)]

    changes = {
        "training": {**TWO_STEPS, "eval_strategy": "steps", "save_strategy": "steps", "num_train_epochs": 1},
        "data": {"max_length": 32, "held_out": []},
        "model": {"start": str(start)},
        "output_dir": str(output),
    }
    recipe = merge(run, changes)
    recipe["data"]["train"] = toy_sources(run["data"]["train"], "train-")
    for split in ("dev", "test"):
        sets = run["data"][split] or {}
        recipe["data"][split] = {name: toy_sources(sources) for name, sources in sets.items()}
    return recipe


def test_paper_values() -> None:
    assert RUNS.keys() == TABLE.keys()
    for name, run in RUNS.items():
        assert_values(run, {**PAPER, **TABLE[name]})
        assert "weight_decay" not in run["training"]  # Adam: none by default


def xnli_data(setting: str) -> dict[str, Any]:
    return RUNS[f"hictl_xnli_{setting}"]["data"]


@pytest.mark.parametrize(
    ("setting", "languages"), [("cross_lingual", ["en"]), ("translate_test", ["en"]), ("translate_train_all", None)]
)
def test_languages_that_xnli_settings_train_on(setting: str, languages: list[str] | None) -> None:
    data = xnli_data(setting)
    assert data["train"]["languages"] == languages
    assert data["dev"]["xnli"]["languages"] == languages


def test_sources_of_xnli_settings() -> None:
    french = xnli_data("translate_train/fr")
    assert french["train"]["config"] == "{lang}"
    assert french["dev"]["xnli"]["config"] == "{lang}"

    for setting in ("cross_lingual", "translate_train_all", "translate_train/fr"):
        assert xnli_data(setting)["test"]["xnli"]["split"] == "test"
    assert xnli_data("translate_test")["test"]["xnli"]["path"] == "${HF_XLSR_XNLI_TRANSLATE_TEST}/{lang}.tsv"


@pytest.mark.parametrize("name", LOCAL_RUNS)
def test_local_sets_are_apart(name: str) -> None:
    data = RUNS[name]["data"]
    sources = as_list(data["train"])
    for split in ("dev", "test"):
        for sources_of_set in data[split].values():
            sources += as_list(sources_of_set)
    selections = {str((source["path"], source.get("where"), source.get("hash_split"))) for source in sources}
    assert len(selections) == len(sources)

    assert len(data["held_out"]) >= 30
    assert data["overlap"] == "text"


@pytest.mark.parametrize("name", LOCAL_RUNS)
def test_local_models_are_chosen_on_dev(name: str) -> None:
    training = RUNS[name]["training"]
    assert training["load_best_model_at_end"]
    assert "/dev/" in training["metric_for_best_model"]


def assert_scores(metrics: dict[str, float], protocol: str, languages: list[str], metric: str) -> None:
    """There is a score for each language, and their mean."""
    scores = [metrics[f"{protocol}/{language}/{metric}"] for language in languages]
    if len(scores) > 1:
        mean = metrics[f"{protocol}/mean-of-{len(scores)}/{metric}"]
        assert mean == pytest.approx(sum(scores) / len(scores))


@pytest.mark.sample(2)
@pytest.mark.parametrize("run", RUNNABLE, ids=itemgetter("name"))
def test_recipe_runs(run: dict[str, Any], start: Path, toy: Path, tmp_path: Path) -> None:
    task = run["task"]
    protocol = run["evaluation"]["protocol"]
    folder = tmp_path / "run"

    metrics = train_recipe(resolve(shrunk(run, start, toy, folder))).metrics

    sets = set()
    for split in ("dev", "test"):
        for name, sources in (run["data"][split] or {}).items():
            sets.add(f"{name}/{split}")
            languages: list[str] = []
            for source in as_list(sources):
                languages += source.get("languages") or run["languages"]
            for metric in task["metrics"] or ["accuracy"]:
                assert_scores(metrics, f"{name}-{protocol}", languages, f"{split}/{metric}")

    model = AutoModelForSequenceClassification.from_pretrained(folder / "model")
    assert isinstance(model, HictlForSequenceClassification)
    assert list(model.config.id2label.values()) == (task["labels"] or ["LABEL_0"])

    results = json.loads((folder / "results.json").read_text("utf-8"))
    assert results["metrics"] == metrics
    assert results["data_sha256"].keys() == sets

    card = (folder / "model" / "README.md").read_text("utf-8")
    assert "pipeline_tag: text-classification" in card
    assert str(tmp_path.parent) not in card


@pytest.mark.slow
def test_start_from_a_run(start: Path, toy: Path, tmp_path: Path) -> None:
    recipe = shrunk(RUNS["hictl_xnli_local_cross_lingual"], start, toy, tmp_path / "first")

    def weights_after(learning_rate: float, **changes: Any) -> dict[str, torch.Tensor]:
        changed = merge(recipe, {"training": {"learning_rate": learning_rate}, **changes})
        train_recipe(resolve(changed))
        return load_file(Path(changed["output_dir"]) / "training" / "final" / "model.safetensors")

    first = weights_after(1e-3)
    second = weights_after(1e-12, model={"start": str(tmp_path / "first")}, output_dir=str(tmp_path / "second"))

    for name, value in first.items():
        if name.startswith("encoder."):
            torch.testing.assert_close(second[name], value, msg=name)
    assert not torch.allclose(first["classifier.weight"], second["classifier.weight"])


@pytest.mark.slow
def test_code_of_the_readme_classifies(start: Path, toy: Path, tmp_path: Path) -> None:
    train_recipe(resolve(shrunk(RUNS["hictl_xnli_local_cross_lingual"], start, toy, tmp_path)))
    model = str(tmp_path / "model")

    readme = (tmp_path / "README.md").read_text("utf-8")
    code = readme.split("```python\n")[1].split("```")[0]
    exec(code.replace("path/to/this/folder", model), {})

    classify = pipeline("text-classification", model=model)
    assert classify({"text": "one red", "text_pair": "two"})["label"] in NLI["task.labels"]
