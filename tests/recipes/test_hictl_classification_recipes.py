"""Recipes of `method: classification`: the paper's values, and that each runs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ENGLISH, FRENCH, tiny_encoder
from recipe_helpers import TWO_STEPS, assert_values, mostly_slow, runs_of
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
RUNS = {run["name"]: run for run in runs_of("classification") if run["name"].startswith(("hictl_glue", "hictl_xnli"))}
# The runs of translate-train differ in their language alone.
RUNNABLE = [
    run for name, run in RUNS.items() if not name.startswith("hictl_xnli_translate_train/") or name.endswith("/sw")
]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained encoder whose tokenizer frames sentences and pairs."""
    folder, rng = tmp_path_factory.mktemp("start"), random.Random(1)
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
        return [{"path": path, "languages": source.get("languages")} for source in as_list(sources)]

    steps = {"eval_strategy": "steps", "save_strategy": "steps", "num_train_epochs": 1}
    recipe = merge(run, {"training": {**TWO_STEPS, **steps}, "data": {"max_length": 32, "held_out": []}})
    recipe["data"]["train"] = small(run["data"]["train"], "train-")
    for split in ("dev", "test"):
        recipe["data"][split] = {name: small(sources) for name, sources in (run["data"][split] or {}).items()}
    recipe["model"]["start"], recipe["output_dir"] = str(start), str(output)
    return recipe


def test_paper_values() -> None:
    assert RUNS.keys() == TABLE.keys()
    for name, run in RUNS.items():
        assert_values(run, {**PAPER, **TABLE[name]})
        assert "weight_decay" not in run["training"]  # Adam: none by default


def test_sources_of_xnli_settings() -> None:
    names = ("cross_lingual", "translate_test", "translate_train_all", "translate_train/fr")
    data = {name: RUNS[f"hictl_xnli_{name}"]["data"] for name in names}
    for name, languages in zip(names[:3], (["en"], ["en"], None), strict=True):
        assert data[name]["train"]["languages"] == data[name]["dev"]["xnli"]["languages"] == languages
    french = data["translate_train/fr"]
    assert french["train"]["config"] == french["dev"]["xnli"]["config"] == "{lang}"
    assert {part["test"]["xnli"]["split"] for name, part in data.items() if name != "translate_test"} == {"test"}
    assert data["translate_test"]["test"]["xnli"]["path"] == "${XNLI_TRANSLATE_TEST}/{lang}.tsv"


def test_local_sets_are_apart() -> None:
    for name in (name for name in RUNS if "local" in name):
        data, training = RUNS[name]["data"], RUNS[name]["training"]
        parts = [as_list(data["train"]), *(as_list(s) for split in ("dev", "test") for s in data[split].values())]
        keys = ["hash_split", "where", "path"]
        chosen = [{(key, str(source.get(key))) for key in keys} for part in parts for source in part]
        assert len({frozenset(one) for one in chosen}) == len(chosen), name
        assert len(data["held_out"]) >= 30 and data["overlap"] == "text"
        assert training["load_best_model_at_end"] and "/dev/" in training["metric_for_best_model"]


@pytest.mark.parametrize("run", mostly_slow(RUNNABLE, "hictl_glue_stsb", "hictl_xnli_local_cross_lingual"))
def test_recipe_runs(run: dict[str, Any], start: Path, toy: Path, tmp_path: Path) -> None:
    result = train_recipe(resolve(shrunk(run, start, toy, tmp_path / "run")))
    protocol, hashed = run["evaluation"]["protocol"], set()
    for split in ("dev", "test"):
        for data, sources in (run["data"][split] or {}).items():
            hashed.add(f"{data}/{split}")
            languages = [tag for source in as_list(sources) for tag in source.get("languages") or run["languages"]]
            for metric in run["task"]["metrics"] or ["accuracy"]:
                values = [result.metrics[f"{data}-{protocol}/{tag}/{split}/{metric}"] for tag in languages]
                if len(languages) > 1:
                    mean = result.metrics[f"{data}-{protocol}/mean-of-{len(languages)}/{split}/{metric}"]
                    assert mean == pytest.approx(sum(values) / len(values))
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "model")
    assert isinstance(model, HictlForSequenceClassification)
    assert list(model.config.id2label.values()) == (run["task"]["labels"] or ["LABEL_0"])
    saved = json.loads((tmp_path / "run" / "results.json").read_text("utf-8"))
    assert saved["metrics"] == result.metrics and saved["data_sha256"].keys() == hashed
    card = (tmp_path / "run" / "model" / "README.md").read_text("utf-8")
    assert "pipeline_tag: text-classification" in card and str(tmp_path.parent) not in card


@pytest.mark.slow
def test_start_from_a_run(start: Path, toy: Path, tmp_path: Path) -> None:
    first = shrunk(RUNS["hictl_xnli_local_cross_lingual"], start, toy, tmp_path / "first")
    second = merge(first, {"model": {"start": str(tmp_path / "first")}, "output_dir": str(tmp_path / "second")})
    weights = []
    for recipe, rate in ((first, 1e-3), (second, 1e-12)):
        train_recipe(resolve(merge(recipe, {"training": {"learning_rate": rate}})))
        weights.append(load_file(Path(recipe["output_dir"]) / "training" / "final" / "model.safetensors"))
    for name, value in weights[0].items():
        if name.startswith("encoder."):
            torch.testing.assert_close(weights[1][name], value, msg=name)
    assert not torch.allclose(weights[0]["classifier.weight"], weights[1]["classifier.weight"])
    model = str(tmp_path / "first" / "model")
    code = (tmp_path / "first" / "README.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
    exec(code.replace("path/to/this/folder", model), {})
    classify = pipeline("text-classification", model=model)
    assert classify({"text": "one red", "text_pair": "two"})["label"] in NLI["task.labels"]
