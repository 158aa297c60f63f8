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
    return Dataset.from_list([{side: pair[side] for side in ("source", "target")} for pair in make_pairs(count, seed)])


def script(encoder: str, folder: Path, *, queue: bool = True, ranking: bool = False, resume: bool = False) -> float:
    """A training script: with our loss, with another, or with both; returns the accuracy on other pairs."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = SentenceTransformer(encoder, device="cpu")
    train, dev = pairs_of(600, 1), pairs_of(40, 9)
    arguments = SentenceTransformerTrainingArguments(
        str(folder), max_steps=60, learning_rate=5e-3, per_device_train_batch_size=16, save_strategy="steps",
        save_steps=20, use_cpu=True, report_to="none", disable_tqdm=True,
    )  # fmt: skip
    losses: dict[str, Any] = {}
    if queue:
        losses["queue"] = DualMomentumLoss(model, queue_size=128, momentum=0.9, in_batch_negatives=True)
    if ranking:
        losses["ranking"] = MultipleNegativesRankingLoss(model)
    data = DatasetDict(dict.fromkeys(losses, train))
    evaluator = TatoebaEvaluator(dev["source"], dev["target"])
    trainer = SentenceTransformerTrainer(
        model,
        arguments,
        train_dataset=data,
        loss=losses,
        callbacks=[DualMomentumCallback(losses)],
        evaluator=evaluator,
    )
    trainer.train(resume_from_checkpoint=resume)
    model.save_pretrained(str(folder / "model"))
    return evaluator(SentenceTransformer(str(folder / "model"), device="cpu"))["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"ranking": True}], ids=["queue loss", "two losses"])
def test_script_learns_and_resumes_after_sigkill(
    options: dict[str, bool], tiny_encoder_folder: str, tmp_path: Path
) -> None:
    dev = pairs_of(40, 9)
    before = TatoebaEvaluator(dev["source"], dev["target"])(SentenceTransformer(tiny_encoder_folder, device="cpu"))[
        "accuracy"
    ]
    whole = script(tiny_encoder_folder, tmp_path / "whole", **options)
    assert whole > before + 0.2
    process = SERVER.Process(target=script, args=(tiny_encoder_folder, tmp_path / "killed"), kwargs=options)
    process.start()
    file = tmp_path / "killed" / "checkpoint-40" / DualMomentumCallback.FILE
    while process.is_alive() and not file.is_file():
        process.join(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    shutil.rmtree(tmp_path / "killed" / "checkpoint-60", ignore_errors=True)
    shutil.rmtree(tmp_path / "killed" / "model", ignore_errors=True)
    script(tiny_encoder_folder, tmp_path / "killed", resume=True, **options)
    models = [SentenceTransformer(str(tmp_path / name / "model"), device="cpu") for name in ("whole", "killed")]
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)
