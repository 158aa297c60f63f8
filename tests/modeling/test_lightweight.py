from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from model_cases import PLAIN, gradients_of, lightweight, lightweight_batch

from hf_xlsr import LightweightDualTransformer
from hf_xlsr.losses import alignment_loss, generative_loss, similarity_loss
from hf_xlsr.modeling.lightweight.labels import generative_labels


def gradients(model: LightweightDualTransformer, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Of every parameter: DDP waits for each."""
    model.zero_grad()
    model(**batch).loss.backward()
    gradients = gradients_of(model)
    assert len(gradients) == len(list(model.parameters()))
    for name, gradient in gradients.items():
        assert gradient.isfinite().all(), name
    return gradients


def flat(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in weights.values()])


def test_loss_equals_equation_7() -> None:
    model = lightweight()
    batch = lightweight_batch()
    mask = batch["attention_mask"]
    output = model(**batch)

    states = model.encoder(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
    sums = (states * mask.unsqueeze(-1)).sum(1)
    pooled = sums / mask.sum(1, keepdim=True)
    source, target = pooled.chunk(2)
    labels = generative_labels(batch["original_ids"], mask, batch["masked_ids"])
    table = model.get_input_embeddings().weight
    expected = {
        "generative": generative_loss(model.lm_head(pooled), table, model.lm_head.bias, *labels),
        "alignment": alignment_loss(source, target),
        "similarity": similarity_loss(source, target),
    }
    torch.testing.assert_close(output.losses, expected)
    total = expected["generative"] + 2 * expected["alignment"] + 2 * expected["similarity"]
    torch.testing.assert_close(output.loss, total)

    embeddings = model(batch["input_ids"], mask, return_loss=False)
    assert embeddings.loss is None
    assert embeddings.losses is None
    for result in (output, embeddings):
        torch.testing.assert_close(result.source_embeds, source)
        torch.testing.assert_close(result.target_embeds, target)


@pytest.mark.parametrize(
    ("changed_loss", "option", "value"),
    [
        ("generative", "label_mode", "set"),
        ("alignment", "alignment_temperature", 0.1),
        ("alignment", "alignment_normalize", True),
        ("similarity", "similarity_temperature", 9.0),
        ("similarity", "similarity_normalize", True),
        ("similarity", "similarity_reduction", "sum"),
        ("similarity", "similarity_epsilon", 0.95),
    ],
)
def test_option_reaches_its_loss_alone(changed_loss: str, option: str, value: Any) -> None:
    batch = lightweight_batch()
    before = lightweight()(**batch).losses
    after = lightweight(**{option: value})(**batch).losses
    for name, loss in before.items():
        is_equal = after[name].item() == pytest.approx(loss.item(), rel=1e-6)
        assert is_equal == (name != changed_loss)


def test_pooling_changes_the_loss() -> None:
    batch = lightweight_batch()
    by_mean = lightweight()(**batch)
    by_maximum = lightweight(pooling="max")(**batch)
    assert by_maximum.loss.item() != by_mean.loss.item()


@pytest.mark.parametrize("name", ["generative", "alignment", "similarity"])
def test_weight_of_zero_skips_the_loss(name: str) -> None:
    model = lightweight(**{f"{name}_weight": 0.0})
    batch = lightweight_batch()
    assert model(**batch).losses.keys() == {"generative", "alignment", "similarity"} - {name}

    for weight_name, gradient in gradients(model, batch).items():
        if name == "generative":
            assert (gradient == 0).all() == weight_name.startswith("lm_head.")


@pytest.mark.parametrize("task", ["smlm", "xtr", "ugt", "mlm", "mlm+xtr"])
@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_gradients_in_every_task(task: str, pooling: str) -> None:
    batch = lightweight_batch(task=task)
    model = lightweight(generative_task=task, pooling=pooling)
    loss = model(**batch).loss.item()
    exact = flat(gradients(model, batch))

    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(**batch)
        rounded = flat(gradients(model, batch))
    for value in (output.loss, *output.losses.values()):
        assert value.dtype == torch.float32
    assert output.loss.item() == pytest.approx(loss, rel=2e-2)
    assert (rounded - exact).norm() < 0.1 * exact.norm()


def test_head_is_one_layer_unless_released() -> None:
    rows = torch.randn(3, PLAIN["hidden_size"])
    linear = lightweight(generative_head="linear").lm_head
    torch.testing.assert_close(linear(rows), rows @ linear.dense.weight.T + linear.dense.bias)

    released = lightweight(generative_head="released").lm_head
    states = rows @ released.dense.weight.T + released.dense.bias
    activated = states * states.sigmoid()
    centred = activated - activated.mean(1, keepdim=True)
    expected = centred / centred.square().mean(1, keepdim=True).sqrt()
    torch.testing.assert_close(released(rows), expected, rtol=1e-4, atol=1e-5)


def test_released_initialisation() -> None:
    model = lightweight({**PLAIN, "vocab_size": 2000, "num_hidden_layers": 3}, initialization="released")
    table = model.get_input_embeddings().weight
    assert (table[0] == 0).all()
    assert table[1:].mean().item() == pytest.approx(0, abs=0.02)
    assert table[1:].std().item() == pytest.approx(1, rel=0.02)

    first_layer, *later_layers = model.encoder.encoder.layer
    for layer in later_layers:
        for weight, first_weight in zip(layer.parameters(), first_layer.parameters(), strict=True):
            assert torch.equal(weight, first_weight)
            assert weight is not first_weight  # alike at the start, not tied

    linear_layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    for layer in linear_layers:
        bound = 1 / math.sqrt(layer.in_features)
        assert layer.weight.abs().max() <= bound
        assert 0 < layer.bias.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)
