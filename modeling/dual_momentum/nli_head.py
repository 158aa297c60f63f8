"""The auxiliary natural language inference task of appendix B."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class NliHead(nn.Module):
    """A two-layer perceptron on the vectors of premise and hypothesis.

    The paper leaves open how the two vectors are combined; this is `[u, v, |u - v|, u * v]`, as its baselines do.

    Args:
        width: Width of a sentence vector.
        hidden_size: Hidden units, 256 in the paper.
        labels: Classes.
        dropout: On the hidden units.
    """

    def __init__(self, width: int, hidden_size: int = 256, labels: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.hidden = nn.Linear(4 * width, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden_size, labels)

    def forward(self, premise: torch.Tensor, hypothesis: torch.Tensor) -> torch.Tensor:
        """`(batch, width)` twice to logits, `(batch, labels)`."""
        u, v = premise, hypothesis
        features = torch.cat([u, v, (u - v).abs(), u * v], dim=-1)
        return self.output(self.dropout(F.relu(self.hidden(features))))
