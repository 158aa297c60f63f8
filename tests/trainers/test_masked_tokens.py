"""Masked-LM losses under accumulation and on two processes: means over the tokens of the whole step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cmlm_helpers import tiny_cmlm
from conftest import make_pairs
from hictl_helpers import framed_tokenizer, tiny_hictl
from lightweight_trainers import model_of
from safetensors.torch import load_file, save_file
from two_processes import run_on_two_processes

from hf_xlsr import trainers
from hf_xlsr.data.multitask import MAIN, TASK

KINDS = ("Lightweight", "Hictl", "Cmlm")
ROWS = 16
# Micro-batches of very different numbers of tokens.
PIECES = [range(0, 2), range(2, 5), range(5, 14), range(14, 16)]


def trainer_of(kind: str, folder: Path) -> Any:
    """A trainer whose loss is masked LM alone."""
    tokenizer = framed_tokenizer()
    only = {"generative_task": "mlm", "alignment_weight": 0.0, "similarity_weight": 0.0}
    models: dict[str, Any] = {
        "Lightweight": lambda: model_of(tokenizer, **only),
        "Hictl": lambda: tiny_hictl(len(tokenizer), sentence_weight=0.0, word_weight=0.0),
        "Cmlm": lambda: tiny_cmlm(len(tokenizer)),
    }
    args = getattr(trainers, f"{kind}TrainingArguments")(
        output_dir=str(folder), max_steps=1, precision="float32", use_cpu=True, max_length=20, report_to="none"
    )
    rows = make_pairs(ROWS + 1)
    data = [{"text": row["source"], "document": "one"} for row in rows] if kind == "Cmlm" else rows[:ROWS]
    return getattr(trainers, f"{kind}Trainer")(models[kind](), args, train_dataset=data, processing_class=tokenizer)


def gradients(kind: str, folder: Path, pieces: list[range]) -> dict[str, torch.Tensor]:
    """Of one step whose micro-batches are `pieces`, and the mean loss of these."""
    trainer = trainer_of(kind, folder)
    batches = []
    for piece in pieces:
        features = trainer.train_dataset.__getitems__([(0, row) for row in piece])
        batches.append(trainer.data_collator([{TASK: MAIN, **feature} for feature in features]))
    batches, items = trainer.get_batch_samples(iter(batches), len(batches), trainer.args.device)
    trainer.current_gradient_accumulation_steps = len(batches)
    loss = sum(trainer.training_step(trainer.model, batch, items) for batch in batches)
    found = {name: parameter.grad for name, parameter in trainer.model.named_parameters()}
    return {"loss": loss, **{name: gradient for name, gradient in found.items() if gradient is not None}}


def half(folder: Path) -> None:
    """Each process's two micro-batches, and the mean of both processes."""
    for kind in KINDS:
        rank = int(os.environ["RANK"])
        found = gradients(kind, folder, PIECES[2 * rank : 2 * rank + 2])
        for tensor in found.values():
            dist.all_reduce(tensor)
        if rank == 0:
            save_file({name: tensor / 2 for name, tensor in found.items()}, folder / f"{kind}.safetensors")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    run_on_two_processes(half, folder, folder=folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_accumulation_equals_one_large_batch(kind: str, tmp_path: Path, two: Path) -> None:
    whole = gradients(kind, tmp_path, [range(ROWS)])
    assert whole["loss"] > 1
    for found in (gradients(kind, tmp_path, PIECES), load_file(two / f"{kind}.safetensors")):
        torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-6)
