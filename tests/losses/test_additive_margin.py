from __future__ import annotations

import math

import pytest
import torch

from hf_xlsr.losses import additive_margin_loss, alignment_loss


def sides(count: int = 5, width: int = 4, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(count, width, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2)]


def naive(source: torch.Tensor, target: torch.Tensor, margin: float, scale: float, normalize: bool) -> torch.Tensor:
    """The paper's formula, sentence by sentence, with its logarithm put back."""

    def similarity(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return one @ other / (one.norm() * other.norm() if normalize else 1.0)

    total = source.new_zeros(())
    for own, other in ((source, target), (target, source)):
        for i, query in enumerate(own):
            right = torch.exp(scale * (similarity(query, other[i]) - margin))
            wrong = sum(torch.exp(scale * similarity(query, other[j])) for j in range(len(own)) if j != i)
            total = total - torch.log(right / (right + wrong)) / len(own)
    return total


@pytest.mark.parametrize("margin", [0.0, 0.3, 2.0])
@pytest.mark.parametrize(("scale", "normalize"), [(1.0, False), (0.5, False), (20.0, True)])
def test_equals_the_formula(margin: float, scale: float, normalize: bool) -> None:
    results = []
    for loss in (
        lambda s, t: additive_margin_loss(s, t, margin=margin, scale=scale, normalize=normalize),
        lambda s, t: naive(s, t, margin, scale, normalize),
    ):
        source, target = (side.requires_grad_() for side in sides())
        value = loss(source, target)
        value.backward()
        results.append((value.detach(), source.grad, target.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    assert results[0][1].abs().max() > 0


def test_hand_worked() -> None:
    # Inner products 1 on the diagonal and 0 beside it; the margin leaves 0.7 for the true pair.
    eye = torch.eye(3, dtype=torch.float64)
    expected = 2 * math.log(1 + 2 * math.exp(-0.7))
    assert additive_margin_loss(eye, eye, margin=0.3).item() == pytest.approx(expected, abs=1e-12)


def test_without_margin_it_is_alignment() -> None:
    source, target = sides()
    torch.testing.assert_close(
        additive_margin_loss(source, target, margin=0.0, scale=20.0, normalize=True),
        alignment_loss(source, target, temperature=0.05, normalize=True),
    )
