from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.losses import alignment_loss


def vectors(batch: int = 5, width: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, width, generator=generator, dtype=dtype) for _ in range(2)]


def looped(u: torch.Tensor, v: torch.Tensor, temperature: float = 1.0, normalize: bool = False) -> torch.Tensor:
    """Equation 5, term by term, averaged over the batch."""

    def similarity(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        scale = a.norm() * b.norm() if normalize else 1.0
        return (a * b).sum() / scale / temperature

    total = u.new_zeros(())
    batch = len(u)
    for j in range(batch):
        numerator = similarity(u[j], v[j]).exp()
        total = total - (numerator / sum(similarity(u[j], v[k]).exp() for k in range(batch))).log()
        total = total - (numerator / sum(similarity(u[k], v[j]).exp() for k in range(batch))).log()
    return total / batch


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("normalize", [False, True])
def test_equals_the_loop(temperature: float, normalize: bool) -> None:
    u, v = (x.requires_grad_() for x in vectors())
    loss = alignment_loss(u, v, temperature=temperature, normalize=normalize)
    twin = looped(u, v, temperature, normalize)
    torch.testing.assert_close(loss, twin, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(loss, (u, v)), torch.autograd.grad(twin, (u, v)))


def test_hand_worked() -> None:
    # Similarities [[0, log 3], [0, 0]]: row softmax at the diagonal 1/4, 1/2; column softmax 1/2, 1/4.
    u = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    v = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]], dtype=torch.float64)
    expected = -(2 * math.log(1 / 4) + 2 * math.log(1 / 2)) / 2
    assert alignment_loss(u, v).item() == pytest.approx(expected, rel=1e-12)


def test_one_pair_is_zero() -> None:
    u, v = vectors(batch=1)
    assert alignment_loss(u, v).item() == 0


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), batch=st.integers(1, 8))
def test_order_does_not_matter(seed: int, batch: int) -> None:
    u, v = vectors(batch, seed=seed)
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
    loss = alignment_loss(u, v).item()
    assert loss >= 0
    assert alignment_loss(v, u).item() == pytest.approx(loss, rel=1e-9, abs=1e-12)
    assert alignment_loss(u[order], v[order]).item() == pytest.approx(loss, rel=1e-9, abs=1e-12)


def test_large_inner_products_stay_finite() -> None:
    u, v = (1e3 * x.float().requires_grad_() for x in vectors())
    loss = alignment_loss(u, v)
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, (u, v)))


def test_zero_vectors_are_finite() -> None:
    u = torch.zeros(3, 4, requires_grad=True)
    loss = alignment_loss(u, torch.zeros(3, 4), temperature=0.05, normalize=True)
    assert loss.item() == pytest.approx(2 * math.log(3), rel=1e-6)
    assert torch.autograd.grad(loss, u)[0].isfinite().all()
