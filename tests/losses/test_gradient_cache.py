"""The gradient cache against the same chunks with their graphs kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loss_helpers import unit_rows, value_and_gradients
from torch import nn

from hf_xlsr.losses import (
    additive_margin_loss,
    alignment_loss,
    encode_in_chunks,
    matching_loss,
    sentence_contrast_loss,
    similarity_loss,
)


def gradients(loss: torch.Tensor, model: nn.Module) -> list[Any]:
    """The loss, and the gradients of a model."""
    model.zero_grad()
    loss.backward()
    return [loss.detach(), *(weight.grad for weight in model.parameters())]


@pytest.mark.parametrize("size", [1, 3, 8, 20])
@pytest.mark.parametrize("loss", [alignment_loss, additive_margin_loss])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_cached_gradients_equal_those_of_kept_graphs(size: int, loss: Any, dropout: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 5))
    rows = torch.randn(16, 6)

    torch.manual_seed(1)
    embeddings = encode_in_chunks(model, size)(rows)
    cached = gradients(loss(*embeddings.chunk(2)), model)
    later_draw = torch.rand(1)

    torch.manual_seed(1)
    embeddings = torch.cat([model(chunk) for chunk in rows.split(size)])
    expected = gradients(loss(*embeddings.chunk(2)), model)
    expected_draw = torch.rand(1)

    torch.testing.assert_close(cached, expected, atol=1e-6, rtol=1e-6)
    assert torch.equal(later_draw, expected_draw)
    if not dropout:
        whole = gradients(loss(*model(rows).chunk(2)), model)
        torch.testing.assert_close(cached, whole, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("size", [1, 40, 10_000])  # 1, 3 and all rows
@pytest.mark.parametrize(
    ("loss", "sizes", "options"),
    [
        (alignment_loss, (9, 9, 4), {"temperature": 0.5, "normalize": True}),
        (additive_margin_loss, (9, 9, 4), {"margin": 0.4, "scale": 3.0}),
        (sentence_contrast_loss, (9, 9, 4), {"temperature": 0.5}),
        (sentence_contrast_loss, (9, 9, 4), {"hardness": 0.7}),
        (similarity_loss, (9, 9), {}),
        (matching_loss, (9, 9), {"teacher": torch.arange(18.0).view(9, 2).double()}),
    ],
)
def test_blocks_change_no_loss(
    loss: Any, sizes: tuple[int, ...], options: dict[str, Any], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = [unit_rows(rows, 6, seed) for seed, rows in enumerate(sizes)]
    whole = value_and_gradients(loss, vectors, **options)

    monkeypatch.setattr("hf_xlsr.losses.in_batch.SIMILARITIES", size)
    in_blocks = value_and_gradients(loss, vectors, **options)

    torch.testing.assert_close(in_blocks, whole)
