"""HICTL's trainer: negatives that harden."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_pairs
from hictl_helpers import framed_tokenizer, tiny_hictl

from hf_xlsr.losses import sentence_contrast_loss
from hf_xlsr.modeling.hictl import modeling_hictl
from hf_xlsr.trainers import HictlTrainer, HictlTrainingArguments


def test_negatives_harden_with_the_contrast_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hardness is ζ times the mean probability of translations in the steps before, also after a resume."""
    hardness: list[float] = []

    def noted(*rows: Any, **options: Any) -> torch.Tensor:
        hardness.append(options["hardness"])
        return sentence_contrast_loss(*rows, **options)

    monkeypatch.setattr(modeling_hictl, "sentence_contrast_loss", noted)
    tokenizer, finals = framed_tokenizer(), []
    for resume in (False, True):
        model = tiny_hictl(len(tokenizer), word_weight=0.0, sentence_temperature=0.1, negative_interpolation=0.9)
        arguments = HictlTrainingArguments(
            output_dir=str(tmp_path), use_cpu=True, precision="float32", max_steps=6, max_length=32, learning_rate=1e-3
        )
        arguments.gradient_accumulation_steps, arguments.per_device_train_batch_size = 2, 4
        arguments.save_steps, arguments.logging_steps, arguments.report_to = 3, 1, []
        trainer = HictlTrainer(model, arguments, train_dataset=make_pairs(48), processing_class=tokenizer)
        if resume:
            shutil.rmtree(tmp_path / "checkpoint-6")
        trainer.train(resume_from_checkpoint=resume)
        finals.append([model.state_dict(), [entry["loss/sentence"] for entry in trainer.state.log_history[:-1]]])
    (weights, losses), (resumed, _) = finals
    probabilities = np.exp(-np.array(losses) / 2)
    expected = [0.9 * probabilities[:step].mean() if step else 0.0 for step in range(6)]
    assert hardness == pytest.approx([*np.repeat(expected, 2), *np.repeat(expected[3:], 2)], rel=1e-5)
    assert all(torch.equal(value, resumed[name]) for name, value in weights.items())
