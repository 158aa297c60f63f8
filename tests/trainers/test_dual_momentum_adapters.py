"""LoRA through peft: the average follows the adapters, and none is trained on it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from dual_momentum_runs import tiny_dual, trainer_of

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
