"""HICTL's trainer: negatives that harden."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_pairs
from hictl_helpers import framed_tokenizer, tiny_hictl
from transformers import TrainerState

from hf_xlsr.losses import sentence_contrast_loss
from hf_xlsr.modeling.hictl import modeling_hictl
from hf_xlsr.trainers import HictlTrainer, HictlTrainingArguments
from hf_xlsr.trainers.hictl import RecentContrastCallback


@pytest.mark.slow
def test_negatives_harden_with_the_contrast_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hardness is ζ times the mean probability of translations in the steps before, also after a resume."""
    hardness: list[float] = []

    def noted(*rows: Any, **options: Any) -> torch.Tensor:
        hardness.append(options["hardness"])
        return sentence_contrast_loss(*rows, **options)

    monkeypatch.setattr(modeling_hictl, "sentence_contrast_loss", noted)
    tokenizer = framed_tokenizer()
    finals = []
    for resume, restores_callbacks in ((False, False), (True, False), (True, True)):
        model = tiny_hictl(len(tokenizer), word_weight=0.0, sentence_temperature=0.1, negative_interpolation=0.9)
        arguments = HictlTrainingArguments(
            output_dir=str(tmp_path), use_cpu=True, precision="float32", max_steps=6, max_length=32, learning_rate=1e-3
        )
        arguments.gradient_accumulation_steps = 2
        arguments.per_device_train_batch_size = 4
        arguments.save_steps = 3
        arguments.logging_steps = 1
        arguments.report_to = []
        arguments.restore_callback_states_from_checkpoint = restores_callbacks
        trainer = HictlTrainer(model, arguments, train_dataset=make_pairs(48), processing_class=tokenizer)
        if resume:
            shutil.rmtree(tmp_path / "checkpoint-6")
        trainer.train(resume_from_checkpoint=resume)
        finals.append([model.state_dict(), [entry["loss/sentence"] for entry in trainer.state.log_history[:-1]]])
    (weights, losses), (resumed, _), (restored, _) = finals
    probabilities = np.exp(-np.array(losses) / 2)
    expected = [0.9 * probabilities[:step].mean() if step else 0.0 for step in range(6)]
    after_resume = np.repeat(expected[3:], 2)
    assert hardness == pytest.approx([*np.repeat(expected, 2), *after_resume, *after_resume], rel=1e-5)
    for name, value in weights.items():
        assert torch.equal(value, resumed[name]), name
        assert torch.equal(value, restored[name]), name


def test_a_second_training_remembers_nothing_of_the_first() -> None:
    recent = RecentContrastCallback()
    recent.step_losses = [2.0, 4.0]
    recent.on_step_end(None, None, None)
    assert recent.mean_probability == pytest.approx(math.exp(-1.5))
    assert recent.state()["attributes"]["probabilities"] == recent.probabilities

    state = TrainerState(stateful_callbacks=[recent])
    recent.on_train_begin(None, state, None)
    assert recent.mean_probability == 0


def test_steps_before_a_checkpoint_are_restored() -> None:
    """Also from a checkpoint of a training without the callback, which Trainer could not write again."""
    name = RecentContrastCallback.__name__
    recent = RecentContrastCallback()
    stored = {name: {"args": {}, "attributes": {"probabilities": [0.25, 0.75]}}}
    recent.on_train_begin(None, TrainerState(global_step=2, stateful_callbacks=stored), None)
    assert recent.mean_probability == 0.5

    state = TrainerState(global_step=2, stateful_callbacks=[])
    fresh = RecentContrastCallback()
    fresh.on_train_begin(None, state, None)
    assert fresh.mean_probability == 0
    assert name in state.stateful_callbacks
