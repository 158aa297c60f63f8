"""The views of a sentence vector that stand before the sentence to be filled in."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init


class SentenceProjections(nn.Module):
    """N vectors of one sentence vector: itself, and N - 1 projections of it (appendix C of CMLM).

    .. math:: P_1(v) = v, \\quad P_i(v) = W_{i3}\\, ReLU(W_{i2}\\, ReLU(W_{i1} v + b_{i1}) + b_{i2}) + b_{i3}

    of widths h, 2h, 2h, h. The paper does not say whether projections share layers; with h outputs of the last layer, as
    it has them, each is a network of its own. They are computed together.

    Args:
        width: Of sentence vectors (h).
        count: Vectors (N).
        std: Standard deviation of new weights.

    Example:
        >>> SentenceProjections(8, 5)(torch.ones(2, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, width: int, count: int, std: float = 0.02) -> None:
        super().__init__()
        self.width, self.count, self.std = width, count, std
        widths = (width, 2 * width, 2 * width, width)
        shapes = list(zip(widths, widths[1:], strict=False)) if count > 1 else []
        self.weights = nn.ParameterList(torch.empty(count - 1, before, after) for before, after in shapes)
        self.biases = nn.ParameterList(torch.empty(count - 1, 1, after) for _, after in shapes)
        self.initialize()

    def initialize(self) -> None:
        """Draws new weights."""
        for weight, bias in zip(self.weights, self.biases, strict=True):
            init.normal_(weight, std=self.std)
            init.zeros_(bias)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """`(batch, width)` to `(batch, count, width)`, the vectors themselves first."""
        own = vectors.unsqueeze(1)
        if self.count == 1:
            return own
        states = vectors.to(self.biases[0].dtype).expand(self.count - 1, *vectors.shape)  # (count - 1, batch, width)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            states = torch.baddbmm(bias, F.relu(states) if number else states, weight)
        return torch.cat([own, states.transpose(0, 1).to(own.dtype)], 1)
