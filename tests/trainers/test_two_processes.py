"""Two processes on the same global batches train like one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

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


def test_same_weights_as_one_process(write_pairs: Any, tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    recipe = tmp_path / "toy.yaml"
    dev = write_pairs("dev.tsv", 10, seed=2)
    recipe.write_text(RECIPE.format(train=write_pairs(), dev=dev, tokenizer=tmp_path / "tokenizer"), "utf-8")
    root = Path(__file__).resolve().parents[2]
    script = str(root / "train.py")
    one = [sys.executable, script, str(recipe), "--output_dir", str(tmp_path / "one")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", script]
    two = [*torchrun, str(recipe), "--output_dir", str(tmp_path / "two"), "--per_device_train_batch_size", "8"]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in ([*one, "--per_device_train_batch_size", "16"], two)
    ]
    outputs = [process.communicate(timeout=250)[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    assert "1 process(es)" in outputs[0] and "2 process(es)" in outputs[1]
    weights = [load_file(tmp_path / name / "training" / "final" / "model.safetensors") for name in ("one", "two")]
    assert weights[0].keys() == weights[1].keys()
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-3, atol=2e-5, msg=name)


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
