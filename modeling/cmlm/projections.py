"""Projections of a sentence embedding, which precede the masked sentence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init


class SentenceProjections(nn.Module):
    r"""N vectors of one sentence embedding of width h: itself and N - 1 projections (appendix C of CMLM).

    ```math
    P_1(v) = v, \quad P_i(v) = W_{i3}\, ReLU(W_{i2}\, ReLU(W_{i1} v + b_{i1}) + b_{i2}) + b_{i3}
    ```

    of widths h, 2h, 2h, h by default. The paper does not say whether projections share layers; since its last layer has h
    outputs, each one is a separate network here. They are computed together.
    """

    def __init__(
        self, width: int, count: int, std: float = 0.02, *, layers: int = 3, hidden: int | None = None
    ) -> None:
        super().__init__()
        self.width, self.count, self.std = width, count, std
        widths = (width, *[hidden or 2 * width] * (layers - 1), width)
        shapes = list(zip(widths, widths[1:], strict=False)) if count > 1 else []
        self.weights = nn.ParameterList(torch.empty(count - 1, before, after) for before, after in shapes)
        self.biases = nn.ParameterList(torch.empty(count - 1, 1, after) for _, after in shapes)
        self.initialize()

    def initialize(self) -> None:
        for weight, bias in zip(self.weights, self.biases, strict=True):
            init.normal_(weight, std=self.std)
            init.zeros_(bias)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """`(batch, width)` to `(batch, count, width)`, the sentence embeddings first."""
        own = vectors.unsqueeze(1)
        if self.count == 1:
            return own
        states = vectors.to(self.biases[0].dtype).expand(self.count - 1, *vectors.shape)  # (count - 1, batch, width)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            states = torch.baddbmm(bias, F.relu(states) if number else states, weight)
        return torch.cat([own, states.transpose(0, 1).to(own.dtype)], 1)
