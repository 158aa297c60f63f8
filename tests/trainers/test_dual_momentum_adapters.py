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
    trainer = trainer_of(tmp_path, model=model, max_steps=1, queue_prefill=True)
    start = {name: value.clone() for name, value in model.named_parameters()}
    trainer.train()

    weights = dict(model.named_parameters())
    trained = {name for name, value in weights.items() if value.requires_grad}
    assert len(trained) == 2 * 2 * 3 * 2  # languages, layers, query key value, two factors
    assert trained == {name for name in weights if "lora_" in name and ".encoders." in name}

    moved_averages = []
    for name, value in weights.items():
        if name in trained:
            continue
        if "lora_" not in name:
            assert torch.equal(value, start[name]), name
            continue
        base = weights[name.replace("momentum_encoders", "encoders")]
        torch.testing.assert_close(value, 0.9 * start[name] + 0.1 * base, rtol=1e-5, atol=1e-8, msg=name)
        if not torch.equal(value, start[name]):
            moved_averages.append(name)
    # One factor of each pair starts at 0 and gets the first gradient; the other waits for it.
    assert len(moved_averages) == 12


def test_checkpoint_brings_queues_and_projections(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, model=add_adapters(tiny_dual(projection_dim=8), rank=4), max_steps=2)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))

    resumed = trainer_of(tmp_path, model=add_adapters(tiny_dual(projection_dim=8), rank=4))
    resumed.load_checkpoint(tmp_path / "saved")

    expected = trainer.model.state_dict()
    assert int(expected["base_model.model.queues.fr.filled"]) == 32
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, expected[name]), name
