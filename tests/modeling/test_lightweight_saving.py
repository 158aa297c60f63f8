from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from lightweight_models import (
    BERT,
    VOCABULARY,
    WIDTH,
    build,
    gradients,
    make_batch,
)
from transformers import AutoModel

from hf_xlsr import LightweightDualTransformer
from hf_xlsr.losses.unified_generative import GENERATIVE_TASKS


def assert_same_weights(first: torch.nn.Module, second: torch.nn.Module) -> None:
    expected = second.state_dict()
    assert first.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in first.state_dict().items())


# Configuration


# Saving and loading


def test_loading_keeps_the_checkpoint(tmp_path: Path) -> None:
    model = build(initialization="released")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    state = model.state_dict()
    loaded = LightweightDualTransformer.from_pretrained(None, config=model.config, state_dict=state)
    assert_same_weights(loaded, model)


def test_unused_head_gets_zero_gradients(tmp_path: Path) -> None:
    build(generative_weight=0.0).save_pretrained(tmp_path)
    loaded, batch = AutoModel.from_pretrained(tmp_path).train(), make_batch()
    for name, gradient in gradients(loaded, batch).items():
        # DDP waits for every parameter.
        assert gradient is not None and (name.startswith("head.") == bool((gradient == 0).all())), name
    output = loaded(**batch)
    assert output.loss.item() == pytest.approx(2 * sum(value.item() for value in output.losses.values()))


@pytest.mark.parametrize("task", GENERATIVE_TASKS)
def test_bfloat16_stays_close(task: str) -> None:
    batch = make_batch(task)
    exact = build(generative_task=task)
    expected = gradients(exact, batch)
    loss = exact(**batch).loss.item()

    def compare(model: LightweightDualTransformer, got: dict[str, torch.Tensor | None]) -> None:
        assert model(**batch).loss.item() == pytest.approx(loss, rel=2e-2)
        flat = torch.cat([gradient.float().flatten() for gradient in got.values()])
        truth = torch.cat([gradient.flatten() for gradient in expected.values()])
        assert torch.cosine_similarity(flat, truth, dim=0) > 0.99
        assert (flat - truth).norm() < 0.1 * truth.norm()

    lowered = build(generative_task=task).bfloat16()
    compare(lowered, gradients(lowered, batch))
    mixed = build(generative_task=task)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = mixed(**batch)
        assert output.loss.dtype == torch.float32
        assert all(value.dtype == torch.float32 for value in output.losses.values())
        compare(mixed, gradients(mixed, batch))


# Vocabulary


def test_decoder_is_tied() -> None:
    model = build()
    assert sum(parameter.shape == (VOCABULARY, WIDTH) for parameter in model.parameters()) == 1
    table = torch.nn.Embedding(VOCABULARY, WIDTH)
    model.set_input_embeddings(table)
    batch = make_batch("xtr")
    model.config.generative_task = "xtr"
    gradients(model, batch)
    # A piece that is in no sentence gets its gradient from the decoder alone.
    absent = next(piece for piece in range(VOCABULARY) if piece not in batch["input_ids"])
    assert table.weight.grad[absent].norm() > 0


# Initialisation


def test_released_initialisation() -> None:
    model = build({**BERT, "vocab_size": 2000, "num_hidden_layers": 3}, initialization="released")
    table = model.get_input_embeddings().weight
    assert (table[0] == 0).all()
    assert table[1:].mean().item() == pytest.approx(0, abs=0.02)
    assert table[1:].std().item() == pytest.approx(1, rel=0.02)
    layers = model.encoder.encoder.layer
    for layer in layers[1:]:
        assert_same_weights(layer, layers[0])
        for one, other in zip(layer.parameters(), layers[0].parameters(), strict=True):
            assert one is not other  # alike at the start, not tied
    linears = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    assert "head.dense" in linears
    for linear in linears.values():
        bound = 1 / math.sqrt(linear.in_features)
        assert linear.weight.abs().max() <= bound and linear.bias.abs().max() <= bound
        assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)
        assert (linear.bias != 0).any()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            assert (module.weight == 1).all() and (module.bias == 0).all()
    assert (model.head.bias == 0).all()
