from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from model_cases import PLAIN, lightweight, lightweight_batch

from hf_xlsr import LightweightDualTransformer
from hf_xlsr.losses import alignment_loss, generative_loss, similarity_loss
from hf_xlsr.modeling.lightweight.labels import generative_labels


def gradients(model: LightweightDualTransformer, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Of every parameter: DDP waits for each."""
    model.zero_grad()
    model(**batch).loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in found.values())
    return found


def test_loss_equals_equation_7() -> None:
    model, batch = lightweight(), lightweight_batch()
    output = model(**batch)
    mask = batch["attention_mask"]
    states = model.encoder(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
    pooled = (states * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
    source, target = pooled[:4], pooled[4:]
    labels = generative_labels(batch["original_ids"], mask, batch["masked_ids"])
    table = model.get_input_embeddings().weight
    expected = {
        "generative": generative_loss(model.lm_head(pooled), table, model.lm_head.bias, *labels),
        "alignment": alignment_loss(source, target),
        "similarity": similarity_loss(source, target),
    }
    torch.testing.assert_close(output.losses, expected)
    torch.testing.assert_close(
        output.loss, expected["generative"] + 2 * expected["alignment"] + 2 * expected["similarity"]
    )
    embeddings = model(batch["input_ids"], mask, return_loss=False)
    assert embeddings.loss is None and embeddings.losses is None
    for side, rows in (("source_embeds", source), ("target_embeds", target)):
        torch.testing.assert_close(output[side], rows)
        torch.testing.assert_close(embeddings[side], rows)


def test_every_option_reaches_its_loss() -> None:
    batch = lightweight_batch()
    plain = lightweight()(**batch).losses
    for changes, part in (
        ({"label_mode": "set"}, "generative"),
        ({"alignment_temperature": 0.1}, "alignment"),
        ({"alignment_normalize": True}, "alignment"),
        ({"similarity_temperature": 9.0}, "similarity"),
        ({"similarity_normalize": True}, "similarity"),
        ({"similarity_reduction": "sum"}, "similarity"),
        ({"similarity_epsilon": 0.95}, "similarity"),
    ):
        losses = lightweight(**changes)(**batch).losses
        for name, value in losses.items():
            assert (value.item() != pytest.approx(plain[name].item(), rel=1e-6)) == (name == part), (changes, name)
    assert lightweight(pooling="max")(**batch).loss.item() != lightweight()(**batch).loss.item()


@pytest.mark.parametrize("part", ["generative", "alignment", "similarity"])
def test_weight_of_zero_skips_the_part(part: str) -> None:
    model, batch = lightweight(**{f"{part}_weight": 0.0}), lightweight_batch()
    assert model(**batch).losses.keys() == {"generative", "alignment", "similarity"} - {part}
    for name, gradient in gradients(model, batch).items():
        assert part != "generative" or name.startswith("lm_head.") == bool((gradient == 0).all()), name


@pytest.mark.parametrize("task", ["smlm", "xtr", "ugt", "mlm", "mlm+xtr"])
@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_gradients_in_every_task(task: str, pooling: str) -> None:
    batch = lightweight_batch(task=task)
    model = lightweight(generative_task=task, pooling=pooling)
    exact, loss = gradients(model, batch), model(**batch).loss.item()
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(**batch)
    output.loss.backward()
    assert {value.dtype for value in (output.loss, *output.losses.values())} == {torch.float32}
    assert output.loss.item() == pytest.approx(loss, rel=2e-2)
    near, truth = (
        torch.cat([gradient.flatten() for gradient in side])
        for side in ((parameter.grad for parameter in model.parameters()), exact.values())
    )
    assert (near - truth).norm() < 0.1 * truth.norm()


def test_head_is_one_layer_unless_released() -> None:
    rows = torch.randn(3, PLAIN["hidden_size"])
    for kind in ("linear", "released"):
        head = lightweight(generative_head=kind).lm_head
        expected = rows @ head.dense.weight.T + head.dense.bias
        if kind == "released":
            expected = expected * expected.sigmoid()
            centred = expected - expected.mean(1, keepdim=True)
            expected = centred / centred.square().mean(1, keepdim=True).sqrt()
        torch.testing.assert_close(head(rows), expected, rtol=1e-4, atol=1e-5)


def test_released_initialisation() -> None:
    model = lightweight({**PLAIN, "vocab_size": 2000, "num_hidden_layers": 3}, initialization="released")
    table = model.get_input_embeddings().weight
    assert (table[0] == 0).all()
    assert table[1:].mean().item() == pytest.approx(0, abs=0.02)
    assert table[1:].std().item() == pytest.approx(1, rel=0.02)
    first, *others = model.encoder.encoder.layer
    for layer in others:
        for one, other in zip(layer.parameters(), first.parameters(), strict=True):
            assert torch.equal(one, other) and one is not other  # alike at the start, not tied
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            bound = 1 / math.sqrt(module.in_features)
            assert module.weight.abs().max() <= bound and 0 < module.bias.abs().max() <= bound
            assert module.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)
