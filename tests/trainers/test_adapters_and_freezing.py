"""Adapters, frozen layers, checkpointing of gradients and noise: trained as asked, or refused by name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from seven_trainers import KINDS, arguments_of, model_of, trainer_of

from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.utils.errors import XlsrError

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
REENTRANT = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
REFUSING = ("Cmlm", "DualMomentum")


def frozen_model(kind: str) -> Any:
    """A model without dropout, whose embeddings are not trained."""
    model = model_of(kind)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    encoders = model.encoders.values() if kind == "DualMomentum" else [model.encoder]
    for encoder in encoders:
        encoder.embeddings.requires_grad_(False)
    return model


def step(kind: str, folder: Path, model: Any, **settings: Any) -> dict[str, torch.Tensor]:
    """The weights after a step of plain gradient descent."""
    options = {"max_steps": 1, "optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0, **settings}
    trainer = trainer_of(kind, folder, model=model, settings=options)
    trainer.train()
    return dict(trainer.model.state_dict())


@pytest.mark.sample(2)
@pytest.mark.parametrize("task_type", [None, "FEATURE_EXTRACTION"])
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_of_any_task_type_train_alike(kind: str, task_type: str | None, tmp_path: Path) -> None:
    """And the object that is given stays of its class."""
    peft = pytest.importorskip("peft")
    options: dict[str, Any] = {}
    if kind in ("Distillation", "DualMomentum"):
        options["queue_size"] = 0
    if kind == "DualMomentum":
        options |= {"use_momentum": False, "in_batch_negatives": True}

    def adapted(task: str | None) -> Any:
        torch.manual_seed(1)
        targets = ["query", "value"]
        config = peft.LoraConfig(r=2, target_modules=targets, task_type=task)
        return peft.get_peft_model(model_of(kind, **options), config)

    given = adapted(task_type)
    kind_of_given = type(given)
    weights = step(kind, tmp_path / "one", given)
    assert type(given) is kind_of_given
    expected = step(kind, tmp_path / "two", adapted(None))
    assert any("lora_B" in name and bool(value.any()) for name, value in weights.items())
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "kind", [*REFUSING, *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind not in REFUSING)]
)
def test_checkpointing_gives_the_gradients_or_is_refused(kind: str, tmp_path: Path) -> None:
    """With frozen embeddings, where reentrant checkpointing can lose gradients in silence."""
    expected = step(kind, tmp_path, frozen_model(kind))
    ways: list[dict[str, Any]] = [{"gradient_checkpointing": True}]
    if kind in REFUSING:
        with pytest.raises(XlsrError, match="use_reentrant"):
            step(kind, tmp_path, frozen_model(kind), **REENTRANT)
        model = frozen_model(kind)
        model.activation_checkpointing_enable({"use_reentrant": True})
        with pytest.raises(XlsrError, match="use_reentrant"):
            step(kind, tmp_path, model)
    else:
        ways.append(REENTRANT)
    for settings in ways:
        weights = step(kind, tmp_path, frozen_model(kind), **settings)
        for name, value in expected.items():
            torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-7)


def test_noise_reaches_the_embeddings_of_every_language(tmp_path: Path) -> None:
    from seven_trainers import encoder

    from hf_xlsr.modeling.dual_momentum import DualMomentumModel

    model = DualMomentumModel.from_encoders({"en": encoder(0), "fr": encoder(1)}, queue_size=64)
    trainer = trainer_of("DualMomentum", tmp_path, model=model, settings={"neftune_noise_alpha": 5.0, "max_steps": 1})
    ids = torch.tensor([[1, 2, 3]])
    changed: dict[str, bool] = {}

    def watch(module: Any, arguments: Any) -> None:
        for name, encoder_in_training in model.encoders.items():
            table = encoder_in_training.get_input_embeddings()
            changed[name] = not torch.equal(table(ids), table.weight[ids])

    handle = model.register_forward_pre_hook(watch)
    trainer.train()
    handle.remove()
    assert changed == {"en": True, "fr": True}
    model.train()
    for encoder_after in base_model(model).encoders.values():
        table = encoder_after.get_input_embeddings()
        assert torch.equal(table(ids), table.weight[ids])


@EVERY_KIND
def test_a_launch_that_starts_one_process_warns(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`accelerate launch --num_processes 2` on a CPU."""
    with caplog.at_level(logging.WARNING):
        arguments_of(kind, tmp_path)
        assert "WORLD_SIZE" not in caplog.text
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        arguments_of(kind, tmp_path)
    assert "WORLD_SIZE" in caplog.text
