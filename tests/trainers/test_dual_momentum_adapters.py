"""LoRA through peft: the average follows the adapters, none is trained on it, and resuming is exact."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from dual_momentum_runs import tiny_dual, trainer_of
from safetensors.torch import load_file

from hf_xlsr import XlsrError
from hf_xlsr.trainers import add_adapters

peft = pytest.importorskip("peft")


def test_average_follows_adapters(tmp_path: Path) -> None:
    model = add_adapters(tiny_dual(), rank=4)
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    assert len(trained) == 2 * 2 * 3 * 2  # languages, layers, query key value, two factors
    assert all("lora_" in name and ".encoders." in name for name in trained)
    trainer = trainer_of(tmp_path, model=model, max_steps=1, queue_prefill=True)
    start = {name: value.clone() for name, value in model.named_parameters()}
    trainer.train()
    moved = 0
    for name, value in model.named_parameters():
        if "momentum_encoders" not in name:
            assert value.requires_grad == ("lora_" in name), name
            if not value.requires_grad:
                assert torch.equal(value, start[name]), name
            continue
        assert not value.requires_grad
        base = dict(model.named_parameters())[name.replace("momentum_encoders", "encoders")]
        expected = 0.9 * start[name] + 0.1 * base if "lora_" in name else start[name]
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-8, msg=name)
        moved += not torch.equal(value, start[name])
    assert moved == 12  # one factor of each pair starts at 0 and gets the first gradient; the other waits for it


def test_best_checkpoint_is_loaded_whole(tmp_path: Path) -> None:
    scores = iter([0.9, 0.1, 0.1])
    model = add_adapters(tiny_dual(projection_dim=12), rank=4)
    options = {"max_steps": 6, "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    options |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_score", "greater_is_better": True}
    trainer_of(tmp_path, model=model, evaluations=[lambda _: {"score": next(scores)}], **options).train()
    kept = load_file(tmp_path / "checkpoint-2" / "dual_momentum_state.safetensors")
    last = load_file(tmp_path / "checkpoint-6" / "dual_momentum_state.safetensors")
    now = model.get_base_model().state_dict()
    assert {name.split(".")[0] for name in kept} == {"projections", "momentum_projections", "queues"}
    assert all(torch.equal(now[name], value) for name, value in kept.items())
    trained = "projections.en.modules_to_save.default.weight"
    assert not torch.equal(kept[trained], last[trained])


@pytest.mark.parametrize("adapt", [partial(add_adapters, rank=4), lambda model: model], ids=["adapters", "whole"])
def test_checkpoint_of_other_settings(adapt: Any, tmp_path: Path) -> None:
    trainer_of(tmp_path, model=adapt(tiny_dual()), max_steps=2, save_steps=2).train()
    for name, value in (("queue_storage", "int8"), ("queue_size", 128), ("projection_dim", 8)):
        other = trainer_of(tmp_path, model=adapt(tiny_dual(**{name: value})), max_steps=4)
        with pytest.raises(XlsrError, match=name):
            other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_own_adapters_on_both_sides(tmp_path: Path) -> None:
    """A list of names hits the momentum encoders too, and trainable: the trainer freezes and equals them."""
    model = peft.get_peft_model(tiny_dual(), peft.LoraConfig(r=4, target_modules=["query", "value"]))
    assert any(value.requires_grad for name, value in model.named_parameters() if "momentum_encoders" in name)
    trainer_of(tmp_path, model=model)
    for name, value in model.named_parameters():
        if "momentum_encoders" in name:
            assert not value.requires_grad
            assert torch.equal(value, dict(model.named_parameters())[name.replace("momentum_encoders", "encoders")])
