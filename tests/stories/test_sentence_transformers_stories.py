"""Scripts of sentence-transformers users with our losses, as `docs/sentence-transformers.md` tells."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_pairs
from datasets import Dataset, DatasetDict
from forked_command import SERVER
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from hf_xlsr.sentence_transformers import DualMomentumCallback, DualMomentumLoss, TatoebaEvaluator


def pairs_of(count: int, seed: int) -> Dataset:
    return Dataset.from_list(make_pairs(count, seed)).select_columns(["source", "target"])


def accuracy(model: SentenceTransformer) -> float:
    """How often the nearest sentence is the translation, among other pairs than those of the training."""
    dev = pairs_of(40, 9)
    return TatoebaEvaluator(dev["source"], dev["target"])(model)["accuracy"]


def loaded(folder: str | Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu")


def script(encoder: str, folder: Path, *, ranking: bool = False, resume: bool = False) -> None:
    """A training script with our loss, and perhaps with another."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = loaded(encoder)
    arguments = SentenceTransformerTrainingArguments(
        str(folder),
        max_steps=60,
        learning_rate=5e-3,
        per_device_train_batch_size=16,
        save_strategy="steps",
        save_steps=20,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    losses: dict[str, Any] = {
        "queue": DualMomentumLoss(model, queue_size=128, momentum=0.9, in_batch_negatives=True),
    }
    if ranking:
        losses["ranking"] = MultipleNegativesRankingLoss(model)

    trainer = SentenceTransformerTrainer(
        model,
        arguments,
        train_dataset=DatasetDict(dict.fromkeys(losses, pairs_of(600, 1))),
        loss=losses,
        callbacks=[DualMomentumCallback(losses)],
    )
    trainer.train(resume_from_checkpoint=resume)
    model.save_pretrained(str(folder / "model"))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"ranking": True}], ids=["queue loss", "two losses"])
def test_script_learns_and_resumes_after_sigkill(
    options: dict[str, bool], tiny_encoder_folder: str, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    script(tiny_encoder_folder, whole, **options)
    assert accuracy(loaded(whole / "model")) > accuracy(loaded(tiny_encoder_folder)) + 0.2

    killed = tmp_path / "killed"
    process = SERVER.Process(target=script, args=(tiny_encoder_folder, killed), kwargs=options)
    process.start()
    saved = killed / "checkpoint-40" / DualMomentumCallback.FILE
    while process.is_alive() and not saved.is_file():
        process.join(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    shutil.rmtree(killed / "checkpoint-60", ignore_errors=True)
    shutil.rmtree(killed / "model", ignore_errors=True)
    script(tiny_encoder_folder, killed, resume=True, **options)

    expected = loaded(whole / "model").state_dict()
    for name, weight in loaded(killed / "model").state_dict().items():
        assert torch.equal(weight, expected[name])
