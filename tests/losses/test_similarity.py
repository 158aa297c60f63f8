from __future__ import annotations

import math

import pytest
import torch

from hf_xlsr.losses import similarity_loss


def vectors(batch: int = 5, width: int = 4, seed: int = 0, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(batch, width, generator=generator, dtype=torch.float64) for _ in range(2)]


def looped(u: torch.Tensor, v: torch.Tensor, temperature: float = 1.0, normalize: bool = False) -> torch.Tensor:
    """Equation 6 as printed: no clamp, summed over all entries."""

    def share(x: torch.Tensor, j1: int, j2: int) -> torch.Tensor:
        row = [(x[j1] * x[k]).sum() / temperature for k in range(len(x))]
        if normalize:
            row = [value / (x[j1].norm() * x[k].norm()) for k, value in enumerate(row)]
        return row[j2].exp() / sum(value.exp() for value in row)

    total = u.new_zeros(())
    for j1 in range(len(u)):
        for j2 in range(len(u)):
            total = total - (math.pi / 2 * (share(u, j1, j2) - share(v, j1, j2))).cos().log()
    return total


def difference_of_one() -> tuple[torch.Tensor, torch.Tensor]:
    """Row 0 of the source resembles sentence 1 alone, of the target itself alone: differences of exactly -1 and 1."""
    source = torch.tensor([[1.0, 0.0], [200.0, 0.0]])
    target = torch.tensor([[200.0, 0.0], [0.0, 200.0]])
    difference = (source @ source.T).softmax(1) - (target @ target.T).softmax(1)
    assert difference[0].tolist() == [-1.0, 1.0]
    return source, target


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("normalize", [False, True])
def test_equals_the_formula(temperature: float, normalize: bool) -> None:
    u, v = (x.requires_grad_() for x in vectors(scale=0.5))
    loss = similarity_loss(u, v, temperature=temperature, normalize=normalize, reduction="sum")
    twin = looped(u, v, temperature, normalize)
    torch.testing.assert_close(loss, twin, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(loss, (u, v)), torch.autograd.grad(twin, (u, v)))


def test_hand_worked() -> None:
    # Source rows are [1/2, 1/2]; the target's are [3/4, 1/4] (inner products log 3 and 0) and [1/2, 1/2].
    source = torch.zeros(2, 1, dtype=torch.float64)
    target = torch.tensor([[math.sqrt(math.log(3))], [0.0]], dtype=torch.float64)
    expected = -2 * math.log(math.cos(math.pi / 8))
    assert similarity_loss(source, target, reduction="sum").item() == pytest.approx(expected, rel=1e-12)
    assert similarity_loss(source, target).item() == pytest.approx(expected / 2, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("epsilon", [1e-4, 1e-6])
def test_difference_of_one_is_finite(dtype: torch.dtype, autocast: bool, epsilon: float) -> None:
    u, v = (x.to(dtype).requires_grad_() for x in difference_of_one())
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = similarity_loss(u, v, reduction="sum", epsilon=epsilon)
    # Two entries sit on the clamp, the second rows agree.
    expected = -2 * math.log(math.sin(math.pi / 2 * epsilon))
    assert loss.item() == pytest.approx(expected, rel=1e-2 if epsilon == 1e-6 else 1e-3)
    for gradient in torch.autograd.grad(loss, (u, v)):
        assert gradient.isfinite().all()


def test_clamp_passes_no_gradient() -> None:
    u, v = (x.requires_grad_() for x in difference_of_one())
    gradients = torch.autograd.grad(similarity_loss(u, v), (u, v))  # the default, `batchmean`
    assert all((gradient == 0).all() for gradient in gradients)


def test_rotation_does_not_matter() -> None:
    u, _ = vectors(width=3)
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))
    assert similarity_loss(u, u).item() == 0
    assert math.copysign(1, similarity_loss(u, u).item()) == 1
    assert similarity_loss(u, u @ rotation).item() == pytest.approx(0, abs=1e-12)
