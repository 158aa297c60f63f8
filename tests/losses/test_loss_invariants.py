"""What holds for every loss: a loss joins with a row of `LOSSES`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from loss_helpers import assert_same_loss, random_tensors, unit_rows, value_and_gradients

from hf_xlsr.losses import (
    additive_margin_loss,
    alignment_loss,
    masked_lm_loss,
    queue_info_nce,
    sentence_contrast_loss,
    similarity_loss,
    sparse_target_cross_entropy,
    word_contrast_loss,
)

SIDES = ((5, 4), (5, 4))
HARD = (*SIDES, (3, 4))  # with hard negatives
IDS = torch.tensor([[1, 2], [3, 3], [0, 8], [5, 6]])
MASS = torch.tensor([[0.5, 0.5], [0.2, 0.3], [1.0, 0.0], [0.7, 0.1]])
ROW_WEIGHTS = torch.tensor([0.1, 0.4, 0.3, 0.2])
LABELS = torch.tensor([[1, -100, 8], [-100, 0, 3]])
BAGS = (torch.tensor([0, 0, 1, 3, 4]), torch.tensor([5, 6, 7, 5, 9]))
NEGATIVES = torch.tensor([[1, 2, 3], [2, 3, 4], [1, 3, 5], [1, 2, 8], [2, 6, 7]])
QUEUE = unit_rows(9, 4, seed=3, dtype=torch.float32)
# Shapes of what may be trained, and the loss of it.
LOSSES: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[..., torch.Tensor]]] = {
    "alignment": (HARD, alignment_loss),
    "alignment of directions": (HARD, lambda *x: alignment_loss(*x, temperature=0.1, normalize=True)),
    "similarity": (SIDES, similarity_loss),
    "additive margin": (HARD, additive_margin_loss),
    "sentence contrast": (HARD, sentence_contrast_loss),
    "word contrast": (((5, 4), (11, 4)), lambda *x: word_contrast_loss(*x, BAGS, NEGATIVES, chunk_size=4)),
    "queue": (SIDES, lambda *x: queue_info_nce(*x, QUEUE, temperature=0.3, chunk_size=4)),
    "sparse targets": (
        ((4, 3), (9, 3), (9,)),
        lambda *x: sparse_target_cross_entropy(*x, IDS, MASS, ROW_WEIGHTS, chunk_size=3),
    ),
    "masked LM": (((2, 3, 4), (9, 4), (9,)), lambda hidden, *x: masked_lm_loss(hidden, LABELS, *x, chunk_size=2)),
    "biased": (((2, 3, 4), (9, 4), (2, 9)), lambda hidden, *x: masked_lm_loss(hidden, LABELS, *x, chunk_size=2)),
}
# The others multiply in the precision of autocast.
IN_FLOAT32 = ["alignment", "similarity", "additive margin", "sentence contrast", "word contrast"]


def loss_and_inputs(
    name: str, dtype: torch.dtype = torch.float64
) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
    shapes, loss = LOSSES[name]
    return loss, random_tensors(*shapes, dtype=dtype)


def assert_close(results: Any, expected: Any) -> None:
    torch.testing.assert_close(results, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_only_what_is_trained_gets_a_gradient(name: str) -> None:
    loss, inputs = loss_and_inputs(name)
    _, *slopes = value_and_gradients(loss, inputs)
    for trained, slope in enumerate(slopes):
        leaves = [tensor.clone() for tensor in inputs]
        leaves[trained].requires_grad_()
        loss(*leaves).backward()
        assert_close([leaf.detach() for leaf in leaves], inputs)  # and no input is changed

        assert_close(leaves.pop(trained).grad, slope)
        for leaf in leaves:
            assert leaf.grad is None


@pytest.mark.parametrize("name", LOSSES)
def test_autocast_does_not_lower_the_precision_of_float64(name: str) -> None:
    assert_equal_under_autocast(name, torch.float64)


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_autocast_does_not_lower_the_precision_of_float32(name: str) -> None:
    assert_equal_under_autocast(name, torch.float32)


def assert_equal_under_autocast(name: str, dtype: torch.dtype) -> None:
    loss, inputs = loss_and_inputs(name, dtype)

    def under_autocast(*leaves: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(*leaves)

    assert_same_loss(under_autocast, loss, inputs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", IN_FLOAT32)
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    loss, inputs = loss_and_inputs(name, dtype)
    value, *slopes = value_and_gradients(loss, inputs)
    expected, *twins = value_and_gradients(loss, [tensor.float() for tensor in inputs])
    assert torch.equal(value, expected)
    assert value.dtype == torch.float32
    torch.testing.assert_close(slopes, [twin.to(dtype) for twin in twins])
