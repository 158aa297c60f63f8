"""The training script under accelerate launch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

RECIPE = """
method: lightweight
languages: [en, fr]
data: {{train: {{path: {train}}}, dev: {{path: {dev}}}, max_length: 32, cleaning: [normalize]}}
tokenizer: {{path: {tokenizer}}}
model:
  encoder:
    hidden_size: 16
    num_attention_heads: 2
    intermediate_size: 32
    hidden_dropout_prob: 0.0
    attention_probs_dropout_prob: 0.0
    max_position_embeddings: 40
  similarity_reduction: sum
training:
  max_steps: 12
  learning_rate: 1e-3
  logging_steps: 3
  save_steps: 6
  eval_strategy: steps
  eval_steps: 6
  precision: float32
"""


def test_accelerate_launches_the_script(write_pairs: Any, tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    recipe = tmp_path / "toy.yaml"
    dev = write_pairs("dev.tsv", 10, seed=2)
    recipe.write_text(RECIPE.format(train=write_pairs(), dev=dev, tokenizer=tmp_path / "tokenizer"), "utf-8")
    script = str(Path(__file__).resolve().parents[2] / "train.py")
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--cpu", script, str(recipe)]
    command += ["--output_dir", str(tmp_path / "run"), "--max_steps", "2", "--save_steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 process(es)" in done.stdout
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
