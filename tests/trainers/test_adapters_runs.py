"""LoRA through the recipes of methods with one encoder: trained, resumed, merged and exported."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hictl_helpers import framed_tokenizer
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe

RECIPE = """
method: {method}
languages: [en, fr]
data: {{train: {{path: {train}}}, max_length: 32, cleaning: [normalize]}}
tokenizer: {{path: {tokenizer}}}
model:
  encoder: {{model_type: bert, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 32,
            max_position_embeddings: 40}}
training: {{max_steps: 6, per_device_train_batch_size: 16, learning_rate: 1e-2, logging_steps: 2, save_steps: 2,
           precision: float32}}
adapters: {{rank: 2}}
"""


@pytest.mark.parametrize(("method", "more"), [("lightweight", {}), ("hictl", {"negative_words": 8}), ("cmlm", {})])
def test_adapters_train_resume_and_merge(method: str, more: dict[str, Any], write_pairs: Any, tmp_path: Path) -> None:
    framed_tokenizer().save_pretrained(tmp_path / "tokenizer")
    path = tmp_path / "toy.yaml"
    path.write_text(RECIPE.format(method=method, train=write_pairs(), tokenizer=tmp_path / "tokenizer"), "utf-8")
    options = [word for name, value in more.items() for word in (f"--{name}", str(value))]

    def run(name: str) -> Path:
        (recipe,) = load_runs(str(path), ["--output_dir", str(tmp_path / name), *options])
        train_recipe(recipe)
        return tmp_path / name

    whole, stopped = run("whole"), run("stopped")
    for checkpoint in ("checkpoint-4", "checkpoint-6", "final"):
        shutil.rmtree(stopped / "training" / checkpoint)
    run("stopped")
    saved = [load_file(folder / "training" / "final" / "adapter_model.safetensors") for folder in (whole, stopped)]
    assert any("lora_B" in name for name in saved[0]) and any("dense" in name for name in saved[0])
    for name, value in saved[0].items():
        assert torch.equal(value, saved[1][name]), name
    assert any(value.abs().sum() > 0 for name, value in saved[0].items() if "lora_B" in name)  # they start at 0
    vectors = [SentenceTransformer(str(folder / "model")).encode(["red house"]) for folder in (whole, stopped)]
    np.testing.assert_array_equal(*vectors)
