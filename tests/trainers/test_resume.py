"""A killed or stopped run that is resumed has the weights of an uninterrupted run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import two_process_recipes
from forked_command import Command
from safetensors.torch import load_file

from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.trainers.checkpoints import last_whole_checkpoint

WORDS = (
    "--max_steps 40 --save_steps 5 --logging_steps 7 --gradient_accumulation_steps 2 --dataloader_num_workers 1 "
    "--optim adamw_torch --learning_rate 1e-2 --eval_strategy no --data.dev null --data.test null "
    "--encoder.hidden_dropout_prob 0.1 --encoder.attention_probs_dropout_prob 0.1"
).split()


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    two_process_recipes.write_recipes(tmp_path)
    return tmp_path / "LightweightTrainer.yaml"


def weights(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "training" / "final" / "model.safetensors")


def train(recipe: Path, output: Path, log: str, *words: str) -> Command:
    return Command("train", recipe, "--output_dir", output, *WORDS, *words, log=output.parent / log)


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_killed_and_resumed_run_is_bit_equal(precision: str, recipe: Path, tmp_path: Path) -> None:
    whole, killed, words = tmp_path / "whole", tmp_path / "killed", ("--precision", precision)
    victim = train(recipe, killed, "killed.txt", *words)
    checkpoints = killed / "training"
    try:
        victim.wait_for(lambda: last_whole_checkpoint(checkpoints))
        time.sleep(random.uniform(0, 0.2))
    finally:
        victim.kill()
    assert not (checkpoints / "final").exists(), "the run was over before it was killed"
    resumed_from = last_whole_checkpoint(checkpoints)
    assert resumed_from is not None
    # A crash while writing leaves an incomplete checkpoint, which must be ignored.
    torn = checkpoints / "checkpoint-39"
    torn.mkdir()
    (torn / "model.safetensors").write_bytes(b"")
    assert resumed_from.name in train(recipe, killed, "resumed.txt", *words).finish()
    train_recipe(load_runs(str(recipe), ["--output_dir", str(whole), *WORDS, *words])[0])
    one, other = weights(whole), weights(killed)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("step", [12, 15])  # the end of an epoch, and the middle of one
def test_resume_on_two_processes_is_bit_equal(step: int, recipe: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    words = "--max_steps 24 --save_steps 3 --gradient_accumulation_steps 1 --per_device_train_batch_size 8".split()
    script = str(Path(__file__).resolve().parents[2] / "train.py")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [sys.executable, *launcher, script, str(recipe), "--output_dir", str(output), *WORDS, *words]
    results = []
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        assert "2 process(es)" in done.stdout
        results.append(weights(output))
        shutil.rmtree(output / "training" / "final")
        for later in range(step + 3, 25, 3):
            shutil.rmtree(output / "training" / f"checkpoint-{later}")
    assert f"checkpoint-{step}" in done.stdout
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_interrupt_saves_a_checkpoint(recipe: Path, tmp_path: Path) -> None:
    command = train(recipe, tmp_path / "run", "run.txt", "--max_steps", "4000")
    command.wait_for(lambda: last_whole_checkpoint(tmp_path / "run" / "training"))
    command.send(signal.SIGTERM)
    text = command.finish(status=143)
    assert "Finishing the step" in text and "Stopped at step" in text and "Traceback" not in text
    saved = last_whole_checkpoint(tmp_path / "run" / "training")
    assert saved is not None and f"step {int(saved.name.split('-')[1]):,} of 4,000" in text
    assert {"optimizer.pt", "scheduler.pt", "rng_state.pth"} <= set(os.listdir(saved))
