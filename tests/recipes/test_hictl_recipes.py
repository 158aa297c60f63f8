"""The pre-training recipes of HICTL: the paper's values, and that each runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import loaded
from hictl_helpers import framed_tokenizer
from recipe_helpers import mostly_slow, runs_of, value_of

from hf_xlsr.data.sources import as_list
from hf_xlsr.runs.recipe import resolve
from hf_xlsr.runs.train import train_recipe

# Section 4.1 of the paper.
PAPER = {
    "model.encoder.path": "FacebookAI/xlm-roberta-base",
    "model.sentence_temperature": 1.0,
    "model.negative_words": 512,
    "data.max_length": 128,
    "training.learning_rate": 2.5e-5,
    "training.lr_scheduler_type": "linear",
    "training.gradient_accumulation_steps": 16,
    "training.per_device_train_batch_size": 8,  # x 16 x 8 processes = 1,024
    "training.mixing": "equal",
    "training.weight_decay": 0.0,
}
LANGUAGES = set("ar bg de el en es fr hi ru sw th tr ur vi zh".split())


@pytest.mark.parametrize("name", ["hictl_xlmr_15", "hictl_xlmr_15_task"])
def test_paper_values(name: str) -> None:
    (run,) = loaded(name)
    for key, value in PAPER.items():
        assert value_of(run, key) == value, key


def test_fifteen_languages_with_pairs_and_sentences() -> None:
    (run,) = loaded("hictl_xlmr_15")
    assert set(run["languages"]) == LANGUAGES
    assert {source["languages"][1] for source in run["data"]["train"]} == LANGUAGES - {"en"}
    assert {source["languages"][0] for source in run["data"]["monolingual"]} == LANGUAGES
    (second,) = loaded("hictl_xlmr_15_task")
    assert second["start_from"] == "outputs/hictl_xlmr_15" and not as_list(second["data"]["monolingual"])


def test_controls_differ_in_loss_parts() -> None:
    runs = loaded("hictl_open_ablation")
    weights = [(run["model"].get("sentence_weight", 1.0), run["model"].get("word_weight", 1.0)) for run in runs]
    assert weights == [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)]
    assert len({str(run["training"]) for run in runs}) == 1


@pytest.mark.parametrize("run", mostly_slow(runs_of("hictl"), "hictl_open", "hictl_open_ablation/lm"))
def test_each_recipe_runs(run: dict[str, Any], write_pairs: Any, tmp_path: Path) -> None:
    framed_tokenizer().save_pretrained(tmp_path / "tokenizer")
    tiny = {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    run["model"].update(encoder={**tiny, "intermediate_size": 16, "max_position_embeddings": 64}, negative_words=8)
    run["tokenizer"]["path"], run["start_from"] = str(tmp_path / "tokenizer"), None
    run["languages"] = ["en", "fr"]
    texts = tmp_path / "texts.txt"
    texts.write_text("red house\nblue tree\nstone bird\n" * 10, "utf-8")
    rows = {"train": write_pairs("train.tsv", 60), "test": write_pairs("test.tsv", 10, seed=3)}
    run["data"].update({split: {"path": str(path)} for split, path in rows.items()}, held_out=[], dev=None)
    run["data"].update(monolingual={"path": str(texts), "languages": ["en"]}, max_length=32)
    small = {"max_steps": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "logging_steps": 1}
    run["training"].update(small, save_steps=2, eval_steps=2, dataloader_num_workers=0, precision="float32")
    run["output_dir"] = str(tmp_path / "run")
    result = train_recipe(resolve(run))
    assert not result.stopped and result.metrics
    assert list((tmp_path / "run" / "model").rglob("model.safetensors"))
