"""Pooling of token states to sentence embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hf_xlsr.utils.errors import require_choice

POOLING_MODES = ("mean", "max", "cls")


def pool(hidden: torch.Tensor, attention_mask: torch.Tensor, mode: str = "mean") -> torch.Tensor:
    """Pools token states `(batch, length, width)` to `(batch, width)`, in float32 (float64 for float64 states).

    `mean` and `max` are over the real tokens (zeros for a sentence without tokens); `cls` is the state of the first
    token.

    Examples:
        >>> states = torch.tensor([[[1.0, 5.0], [3.0, 1.0], [9.0, 9.0]]])
        >>> pool(states, torch.tensor([[1, 1, 0]]))
        tensor([[2., 3.]])
        >>> pool(states, torch.tensor([[1, 1, 0]]), "max")
        tensor([[3., 5.]])
    """
    require_choice("pooling", mode, POOLING_MODES)
    hidden = hidden if hidden.dtype == torch.float64 else hidden.float()
    if mode == "cls":
        return hidden[:, 0]
    mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
    # Filled, not multiplied: attention over an empty sentence may give NaN.
    if mode == "mean":
        return hidden.masked_fill(mask == 0, 0.0).sum(1) / mask.sum(1).clamp(min=1.0)
    return hidden.masked_fill(mask == 0, float("-inf")).amax(1).masked_fill(mask.sum(1) == 0, 0.0)


def normalize(vectors: torch.Tensor) -> torch.Tensor:
    return F.normalize(vectors, dim=-1)
