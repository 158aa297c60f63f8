"""The recipes of CMLM: the paper's values, its stages, and that each runs."""

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

# Sections 3 and 4.4 of the paper.
PAPER = {
    "model.projections": 15,
    "model.mlm_probability": 80 / 256,
    "data.max_length": 256,
    "training.optimizer": "lamb",
    "training.learning_rate": 1e-3,
    "training.adam_beta1": 0.9,
    "training.adam_beta2": 0.999,
    "training.warmup_steps": 10_000,
    "training.lr_scheduler_type": "linear",
}
MULTILINGUAL = {"tokenizer.vocab_size": 501_153, "tokenizer.smoothing": 0.3, "tokenizer.lowercase": False}
STEPS = {
    "cmlm_base": [1_000_000],
    "cmlm_large": [1_000_000],
    "cmlm_multilingual": [2_000_000],
    "cmlm_br": [2_000_000],
    "cmlm_then_br": [1_500_000, 1_000_000],
    "cmlm_then_cmlm_br": [1_500_000, 1_000_000],
}
# Weights of the tasks in each stage: CMLM, retrieval, inference; None is the model's default.
STAGES = {
    "cmlm_then_br": [(None, 0.0), (0.0, 1.0)],
    "cmlm_then_cmlm_br": [(None, 0.0), (None, 0.2)],
}


@pytest.mark.parametrize("name", STEPS)
def test_paper_values(name: str) -> None:
    runs = loaded(name)
    assert [run["training"]["max_steps"] for run in runs] == STEPS[name]
    for run in runs:
        for key, value in {**PAPER, **(MULTILINGUAL if "base" not in name and "large" not in name else {})}.items():
            assert value_of(run, key) == value, key
    encoder = runs[0]["model"]["encoder"]
    assert (encoder["hidden_size"], encoder["num_hidden_layers"]) == ((1024, 24) if "large" in name else (768, 12))


@pytest.mark.parametrize("name", STAGES)
def test_paper_stages(name: str) -> None:
    weights = [(run["model"].get("cmlm_weight"), run["model"]["retrieval_weight"]) for run in loaded(name)]
    assert weights == STAGES[name]
    *earlier, last = loaded(f"{name}_nli")
    assert [run["training"]["max_steps"] for run in earlier] == STEPS[name]
    assert last["start_from"] == earlier[-1]["output_dir"]
    assert as_list(last["nli"]["train"]) and not as_list(last["data"]["text"]) + as_list(last["data"]["train"])


def test_controls_differ_in_one_value() -> None:
    runs = loaded("cmlm_en_open_ablation")
    assert len({str(run["training"]) for run in runs}) == 1
    default = next(run for run in runs if run["name"].endswith("/n15"))
    for run in runs:
        changed = {
            key for key in {*run["model"], *default["model"]} if run["model"].get(key) != default["model"].get(key)
        }
        assert len(changed) <= 1 and (changed or run["seed"] != 1 or run is default), run["name"]
    assert sorted(run["seed"] for run in runs if run["model"] == default["model"]) == [1, 2, 3, 4, 5]
    together = sum(run["training"]["max_steps"] for run in loaded("cmlm_open_then_cmlm_br")[:2])
    assert {run["training"]["max_steps"] for run in loaded("cmlm_open_ablation")} == {together}


@pytest.mark.parametrize("run", mostly_slow(runs_of("cmlm"), "cmlm_open", "cmlm_then_cmlm_br_nli/nli", "cmlm_f_mbert"))
def test_each_recipe_runs(run: dict[str, Any], write_pairs: Any, tmp_path: Path) -> None:
    framed_tokenizer().save_pretrained(tmp_path / "tokenizer")
    tiny = {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    run["model"]["encoder"] = {**tiny, "intermediate_size": 16, "max_position_embeddings": 64}
    run["tokenizer"]["path"], run["start_from"] = str(tmp_path / "tokenizer"), None
    run["languages"] = ["en", "fr"]
    texts, nli = tmp_path / "texts.txt", tmp_path / "nli.tsv"
    texts.write_text("red house\nblue tree\nstone bird\n\nfish king\none two\nthree four\n" * 10, "utf-8")
    nli.write_text(
        "premise_en\tpremise_fr\thypothesis_en\thypothesis_fr\tlabel\n" + "red\trouge\tblue\tbleu\tneutral\n" * 12,
        "utf-8",
    )
    rows = {"train": write_pairs("train.tsv", 60), "test": write_pairs("test.tsv", 10, seed=3)}
    for split, path in rows.items():
        if as_list(run["data"][split]):
            run["data"][split] = {"path": str(path)}
    if as_list(run["data"]["text"]):
        run["data"]["text"] = {"path": str(texts), "languages": ["en"]}
    if as_list(run["nli"]["train"]):
        columns = "premise=premise_{lang},hypothesis=hypothesis_{lang},label=label"
        run["nli"]["train"] = {"path": str(nli), "columns": columns, "languages": ["en", "fr"]}
    run["data"].update(held_out=[], dev=None, max_length=32)
    small = {"max_steps": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "logging_steps": 1}
    sizes = {"retrieval_batch_size": None, "nli_batch_size": None}
    run["training"].update(small, **sizes, save_steps=2, eval_steps=2, dataloader_num_workers=0, precision="float32")
    run["output_dir"] = str(tmp_path / "run")
    assert not train_recipe(resolve(run)).stopped
    exported = list((tmp_path / "run" / "model").rglob("model.safetensors"))
    assert bool(exported) != (run["model"].get("sentence_vector") == "projected")  # which has no stock form
