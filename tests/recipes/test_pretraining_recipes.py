"""Every pre-training recipe of HICTL and CMLM runs, on a tiny encoder and tiny data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hictl_helpers import framed_tokenizer
from recipe_helpers import mostly_slow, runs_of

from hf_xlsr.data.sources import as_list
from hf_xlsr.runs.recipe import resolve
from hf_xlsr.runs.train import train_recipe

ENCODER = {
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 64,
}
TRAINING = {
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "logging_steps": 1,
    "save_steps": 2,
    "eval_steps": 2,
    "dataloader_num_workers": 0,
    "precision": "float32",
}
FAST = ("hictl_open", "hictl_open_ablation/lm", "cmlm_open", "cmlm_then_cmlm_br_nli/nli", "cmlm_f_mbert")


@pytest.mark.parametrize("run", mostly_slow([*runs_of("hictl"), *runs_of("cmlm")], *FAST))
def test_recipe_runs(run: dict[str, Any], write_pairs: Any, tmp_path: Path) -> None:
    framed_tokenizer().save_pretrained(tmp_path / "tokenizer")
    run["tokenizer"]["path"], run["start_from"] = str(tmp_path / "tokenizer"), None
    run["languages"], run["output_dir"] = ["en", "fr"], str(tmp_path / "run")
    run["model"]["encoder"] = ENCODER
    run["training"] |= TRAINING
    text, nli = tmp_path / "texts.txt", tmp_path / "nli.tsv"
    text.write_text("red house\nblue tree\nstone bird\n\nfish king\none two\nthree four\n" * 10, "utf-8")
    columns = ("premise_en", "premise_fr", "hypothesis_en", "hypothesis_fr", "label")
    nli.write_text("\t".join(columns) + "\n" + "red\trouge\tblue\tbleu\tneutral\n" * 12, "utf-8")
    small: dict[str, Any] = {
        "train": {"path": str(write_pairs("train.tsv", 60))},
        "test": {"path": str(write_pairs("test.tsv", 10, seed=3))},
        "text": {"path": str(text), "languages": ["en"]},
        "monolingual": {"path": str(text), "languages": ["en"]},
    }
    run["data"] |= {name: source for name, source in small.items() if as_list(run["data"].get(name))}
    run["data"] |= {"held_out": [], "dev": None, "max_length": 32}
    if run["method"] == "cmlm":
        run["training"] |= {"retrieval_batch_size": None, "nli_batch_size": None}
        if as_list(run["nli"]["train"]):
            names = "premise=premise_{lang},hypothesis=hypothesis_{lang},label=label"
            run["nli"]["train"] = {"path": str(nli), "columns": names, "languages": ["en", "fr"]}
    else:
        run["model"]["negative_words"] = 8
    result = train_recipe(resolve(run))
    assert not result.stopped and bool(result.metrics) == bool(as_list(run["data"]["test"]))
    exported = list((tmp_path / "run" / "model").rglob("model.safetensors"))
    assert bool(exported) != (run["model"].get("sentence_vector") == "projected")  # which has no stock form
