"""The gradient cache in the models: the same losses and gradients, in the memory of a chunk."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from model_cases import CASES, VOCABULARY, Case, build, lightweight_batch, sentences
from torch.autograd.graph import saved_tensors_hooks

NAMES = ["dual_momentum", "dual_momentum_shared", "hictl", "cmlm", "lightweight"]
SENTENCES = ("hictl", "lightweight")
CACHED = {name: CASES[name] for name in NAMES} | {
    f"lightweight-{task}": replace(
        CASES["lightweight"],
        options={**CASES["lightweight"].options, "generative_task": task},
        batch=partial(lightweight_batch, task=task),
    )
    for task in ("mlm", "xtr", "mlm+xtr")
}


def step(case: Case, *, dtype: torch.dtype = torch.float32, **options: Any) -> dict[str, torch.Tensor]:
    """Loss, its parts and the gradient of each parameter."""
    model = build(case)
    torch.manual_seed(1)  # draws the negative words of HICTL
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        outputs = model(**case.batch(VOCABULARY), **options)
    outputs.loss.backward()
    gradients = {name: part.grad for name, part in model.named_parameters() if part.grad is not None}
    return {
        "loss": outputs.loss.detach(),
        **{f"loss/{name}": value for name, value in outputs.losses.items()},
        **gradients,
    }


@pytest.mark.parametrize("name", CACHED)
@pytest.mark.parametrize("size", [1, 3])
def test_same_losses_and_gradients(name: str, size: int) -> None:
    cached, whole = step(CACHED[name], cache_batch_size=size), step(CACHED[name])
    torch.testing.assert_close(cached, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16(name: str) -> None:
    cached = step(CACHED[name], dtype=torch.bfloat16, cache_batch_size=3)
    whole = step(CACHED[name], dtype=torch.bfloat16)
    for key, value in whole.items():  # products of bfloat16 round differently in each shape
        assert (cached[key] - value).norm() <= 0.05 * value.norm() + 1e-4, key


def saved_bytes(case: Case, batch: dict[str, Any]) -> int:
    """Bytes of activations that the forward pass keeps for the backward pass."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model = build(case)
    weights = {part.untyped_storage().data_ptr() for part in model.parameters()}
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        held = model(**batch)  # the graph, until the count
    assert held.loss.requires_grad
    return sum(size for place, size in kept.items() if place not in weights)


@pytest.mark.parametrize("name", SENTENCES)
def test_chunks_keep_no_activations(name: str) -> None:
    ids, mask = sentences(64, 30, VOCABULARY, 0)
    alone = {"hictl": {"lm_weight": 0.0, "word_weight": 0.0}, "lightweight": {"generative_weight": 0.0}}
    case = replace(CASES[name], options={**CASES[name].options, **alone[name]})
    batch = {"input_ids": ids, "attention_mask": mask}
    assert saved_bytes(case, {**batch, "cache_batch_size": 4}) < saved_bytes(case, batch) / 20
