"""The gradient cache against the same chunks with their graphs kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hf_xlsr.losses import (
    additive_margin_loss,
    alignment_loss,
    encode_in_chunks,
    matching_loss,
    sentence_contrast_loss,
    similarity_loss,
)


def gradients(loss: torch.Tensor, model: nn.Module) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [loss.detach(), *(one.grad for one in model.parameters() if one.grad is not None)]


@pytest.mark.parametrize("size", [1, 3, 8, 20])
@pytest.mark.parametrize("loss", [alignment_loss, additive_margin_loss])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_cached_gradients_equal_those_of_kept_graphs(size: int, loss: Any, dropout: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 5))
    rows = torch.randn(16, 6)
    torch.manual_seed(1)
    cached = gradients(loss(*encode_in_chunks(model, size)(rows).chunk(2)), model)
    after = torch.rand(1)
    torch.manual_seed(1)
    kept = torch.cat([model(chunk) for chunk in rows.split(size)])
    expected = gradients(loss(*kept.chunk(2)), model)
    torch.testing.assert_close(cached, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(after, torch.rand(1), atol=0, rtol=0)  # later draws are the same
    if not dropout:
        whole = gradients(loss(*model(rows).chunk(2)), model)
        torch.testing.assert_close(cached, whole, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("size", [1, 40, 10_000])  # 1, 3 and all rows
@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (alignment_loss, {"temperature": 0.5, "normalize": True}),
        (additive_margin_loss, {"margin": 0.4, "scale": 3.0}),
        (sentence_contrast_loss, {"temperature": 0.5}),
        (sentence_contrast_loss, {"hardness": 0.7}),
        (similarity_loss, {}),
        (matching_loss, {"teacher": torch.arange(18.0).view(9, 2).double()}),
    ],
)
def test_blocks_change_no_loss(loss: Any, options: dict[str, Any], size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(rows, 6, generator=generator, dtype=torch.float64) for rows in (9, 9, 4)]
    vectors = [one.requires_grad_() for one in vectors[: 2 if loss in (similarity_loss, matching_loss) else 3]]
    whole = loss(*vectors, **options)
    monkeypatch.setattr("hf_xlsr.losses.in_batch.SIMILARITIES", size)
    blocks = loss(*vectors, **options)
    torch.testing.assert_close(blocks, whole)
    torch.testing.assert_close(torch.autograd.grad(blocks, vectors), torch.autograd.grad(whole, vectors))
