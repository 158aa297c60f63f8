"""The gradient cache against the same chunks with their graphs kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hf_xlsr.losses import additive_margin_loss, alignment_loss, encode_in_chunks


def gradients(loss: torch.Tensor, model: nn.Module) -> list[torch.Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize("size", [1, 3, 8, 20])
@pytest.mark.parametrize("loss", [alignment_loss, additive_margin_loss])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_cached_gradients_equal_those_of_kept_graphs(size: int, loss: object, dropout: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 5))
    rows = torch.randn(16, 6)
    torch.manual_seed(1)
    cached = gradients(loss(*encode_in_chunks(model, size)(rows).chunk(2)), model)  # type: ignore[operator]
    after = torch.rand(1)
    torch.manual_seed(1)
    kept = torch.cat([model(chunk) for chunk in rows.split(size)])
    expected = gradients(loss(*kept.chunk(2)), model)  # type: ignore[operator]
    torch.testing.assert_close(cached, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(after, torch.rand(1), atol=0, rtol=0)  # later draws are the same
    if not dropout:
        whole = gradients(loss(*model(rows).chunk(2)), model)  # type: ignore[operator]
        torch.testing.assert_close(cached, whole, atol=1e-6, rtol=1e-6)
