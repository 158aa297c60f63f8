"""Masked-LM losses with accumulation and on two processes: means over the tokens of the whole step."""

from __future__ import annotations

import os
from itertools import product
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
from hf_xlsr.data.sampling import MAIN, TASK
from hf_xlsr.losses.cross_entropy import IGNORE

KINDS = ("Lightweight", "Hictl", "Cmlm")
ROWS = 16
# Micro-batches of very different numbers of tokens.
MICRO_BATCHES = [range(0, 2), range(2, 5), range(5, 14), range(14, 16)]


def trainer_of(kind: str, folder: Path, **options: Any) -> Any:
    """A trainer whose loss is masked LM alone; `options` are values of the model's configuration."""
    tokenizer = framed_tokenizer()
    only = {"generative_task": "mlm", "alignment_weight": 0.0, "similarity_weight": 0.0, **options}
    models: dict[str, Any] = {
        "Lightweight": lambda: model_of(tokenizer, **only),
        "Hictl": lambda: tiny_hictl(len(tokenizer), sentence_weight=0.0, word_weight=0.0, **options),
        "Cmlm": lambda: tiny_cmlm(len(tokenizer), **options),
    }
    args = getattr(trainers, f"{kind}TrainingArguments")(
        output_dir=str(folder), max_steps=1, precision="float32", use_cpu=True, max_length=20, report_to="none"
    )
    rows = make_pairs(ROWS + 1)
    data = [{"text": row["source"], "document": "one"} for row in rows] if kind == "Cmlm" else rows[:ROWS]
    return getattr(trainers, f"{kind}Trainer")(models[kind](), args, train_dataset=data, processing_class=tokenizer)


def gradients(kind: str, folder: Path, micro_batches: list[range]) -> dict[str, torch.Tensor]:
    """Gradients of one step, and its mean loss."""
    trainer = trainer_of(kind, folder)
    batches = []
    for rows in micro_batches:
        features = trainer.train_dataset.__getitems__([(0, row) for row in rows])
        batches.append(trainer.data_collator([{TASK: MAIN, **feature} for feature in features]))
    batches, items = trainer.get_batch_samples(iter(batches), len(batches), trainer.args.device)
    trainer.current_gradient_accumulation_steps = len(batches)
    loss = sum(trainer.training_step(trainer.model, batch, items) for batch in batches)
    found = {name: parameter.grad for name, parameter in trainer.model.named_parameters()}
    return {"loss": loss, **{name: gradient for name, gradient in found.items() if gradient is not None}}


@pytest.mark.parametrize("kind", KINDS)
def test_share_of_masked_tokens_is_that_of_the_model(kind: str, tmp_path: Path) -> None:
    counts = []
    for share in (0.2, 0.8):
        trainer = trainer_of(kind, tmp_path, mlm_probability=share)
        features = trainer.train_dataset.__getitems__([(0, row) for row in range(ROWS)])
        batch = trainer.data_collator([{TASK: MAIN, **feature} for feature in features])
        counts.append(int((batch[trainer.token_labels] != IGNORE).sum()))
    assert 3 < counts[1] / counts[0] < 5


# By process, with and without accumulation.
SPLITS = {"accumulated": (MICRO_BATCHES[:2], MICRO_BATCHES[2:]), "single": ([range(0, 3)], [range(3, 16)])}


def half(folder: Path) -> None:
    """The mean of both processes' gradients."""
    rank = int(os.environ["RANK"])
    for kind, (name, split) in product(KINDS, SPLITS.items()):
        found = gradients(kind, folder, split[rank])
        for tensor in found.values():
            dist.all_reduce(tensor)
        if rank == 0:
            save_file({key: tensor / 2 for key, tensor in found.items()}, folder / f"{kind}-{name}.safetensors")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    run_on_two_processes(half, folder, folder=folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_step_equals_one_large_batch(kind: str, tmp_path: Path, two: Path) -> None:
    whole = gradients(kind, tmp_path, [range(ROWS)])
    assert whole["loss"] > 1
    on_two = [load_file(two / f"{kind}-{name}.safetensors") for name in SPLITS]
    for found in (gradients(kind, tmp_path, MICRO_BATCHES), *on_two):
        torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-6)
