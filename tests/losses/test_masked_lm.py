from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hf_xlsr.losses import masked_lm_loss

BATCH, LENGTH, WIDTH, VOCABULARY = 3, 7, 5, 19


@pytest.fixture
def case() -> tuple[list[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = (BATCH, LENGTH, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,)
    parameters = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    labels = torch.full((BATCH, LENGTH), -100)
    for row, column, piece in ((0, 0, 3), (0, 6, 3), (1, 2, 0), (1, 3, 18), (1, 4, 7)):  # row 2 has none
        labels[row, column] = piece
    return parameters, labels


def gradients(loss: torch.Tensor, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, parameters))


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 5, 128])
def test_equals_cross_entropy(case: tuple[list[torch.Tensor], torch.Tensor], chunk_size: int) -> None:
    parameters, labels = case
    hidden, weight, bias = parameters
    loss = masked_lm_loss(hidden, labels, weight, bias, chunk_size=chunk_size)
    twin = F.cross_entropy((hidden @ weight.T + bias).reshape(-1, VOCABULARY), labels.reshape(-1))
    torch.testing.assert_close(loss, twin, rtol=1e-13, atol=0)
    torch.testing.assert_close(gradients(loss, parameters), gradients(twin, parameters), rtol=1e-11, atol=1e-14)


def test_transform_runs_on_masked_states_only(case: tuple[list[torch.Tensor], torch.Tensor]) -> None:
    (hidden, weight, bias), labels = case
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU()).double()
    seen = []

    def transform(states: torch.Tensor) -> torch.Tensor:
        seen.append(states.shape)
        return head(states)

    parameters = [hidden, weight, bias, *head.parameters()]
    loss = masked_lm_loss(hidden, labels, weight, bias, transform=transform, chunk_size=2)
    assert seen == [(5, WIDTH)]
    twin = F.cross_entropy((head(hidden) @ weight.T + bias).reshape(-1, VOCABULARY), labels.reshape(-1))
    torch.testing.assert_close(loss, twin, rtol=1e-13, atol=0)
    torch.testing.assert_close(gradients(loss, parameters), gradients(twin, parameters), rtol=1e-11, atol=1e-14)


def test_nothing_masked_is_zero(case: tuple[list[torch.Tensor], torch.Tensor]) -> None:
    (hidden, weight, bias), labels = case
    head = nn.Linear(WIDTH, WIDTH).double()
    parameters = [hidden, weight, bias, *head.parameters()]
    loss = masked_lm_loss(hidden, torch.full_like(labels, -100), weight, bias, transform=head)
    assert loss.item() == 0
    # DDP waits for every parameter: each must get a gradient, of zeros.
    for gradient in gradients(loss, parameters):
        assert (gradient == 0).all()


def test_other_ignore_index(case: tuple[list[torch.Tensor], torch.Tensor]) -> None:
    (hidden, weight, bias), labels = case
    renamed = labels.masked_fill(labels == -100, -1)
    expected = masked_lm_loss(hidden, labels, weight, bias)
    assert masked_lm_loss(hidden, renamed, weight, bias, ignore_index=-1).item() == expected.item()
