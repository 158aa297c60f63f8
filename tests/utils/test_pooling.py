from __future__ import annotations

import pytest
import torch

from hf_xlsr.utils.pooling import POOLING_MODES, pool

LENGTHS = [4, 1, 2]


def states(seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def mask() -> torch.Tensor:
    return (torch.arange(4) < torch.tensor(LENGTHS).unsqueeze(1)).long()


def looped(hidden: torch.Tensor, mode: str) -> torch.Tensor:
    rows = [row[:length] for row, length in zip(hidden, LENGTHS, strict=True)]
    if mode == "cls":
        return torch.stack([row[0] for row in rows])
    return torch.stack([row.mean(0) if mode == "mean" else row.max(0).values for row in rows])


@pytest.mark.parametrize("mode", POOLING_MODES)
def test_equals_the_loop(mode: str) -> None:
    hidden = states().requires_grad_()
    pooled, twin = pool(hidden, mask(), mode), looped(hidden, mode)
    torch.testing.assert_close(pooled, twin)
    half = states(dtype=torch.float16)
    assert torch.equal(pool(half, mask(), mode), pool(half.float(), mask(), mode))
    cotangent = torch.randn(3, 5, dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad(pooled, hidden, cotangent), torch.autograd.grad(twin, hidden, cotangent)
    )


@pytest.mark.parametrize("mode", POOLING_MODES)
@pytest.mark.parametrize("filler", [-1e6, float("nan")])
def test_padding_does_not_leak(mode: str, filler: float) -> None:
    hidden = states()
    dirty = torch.where(mask().bool().unsqueeze(-1), hidden, filler).requires_grad_()
    pooled = pool(dirty, mask(), mode)
    assert torch.equal(pooled, pool(hidden, mask(), mode))
    (gradient,) = torch.autograd.grad(pooled.sum(), dirty)
    assert gradient.isfinite().all()
    assert (gradient[mask() == 0] == 0).all()


@pytest.mark.parametrize("mode", ["mean", "max"])
def test_sentence_without_tokens_is_zero(mode: str) -> None:
    nothing = mask()
    nothing[1] = 0
    hidden = states().requires_grad_()
    pooled = pool(hidden, nothing, mode)
    assert (pooled[1] == 0).all()
    assert torch.equal(pooled[[0, 2]], pool(hidden, mask(), mode)[[0, 2]])
    (gradient,) = torch.autograd.grad(pooled.sum(), hidden)
    assert gradient.isfinite().all() and (gradient[1] == 0).all()
