"""Classifier for natural language inference, an auxiliary task of dual momentum contrast and CMLM."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class NliHead(nn.Module):
    """A classifier on `[u, v, |u - v|, u * v]` of the embeddings of premise and hypothesis.

    This is CMLM's combination (section 4.3). Dual momentum contrast does not specify one (appendix B); its baselines
    use this one.

    Args:
        width: Width of a sentence embedding.
        hidden_size: Hidden units, 256 in dual momentum contrast; 0 for a linear classifier.
        labels: Classes.
        dropout: On the hidden units.

    Examples:
        >>> NliHead(4, hidden_size=0)(torch.ones(2, 4), torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(self, width: int, hidden_size: int = 256, labels: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.hidden = nn.Linear(4 * width, hidden_size) if hidden_size else None
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden_size or 4 * width, labels)

    def forward(self, premise: torch.Tensor, hypothesis: torch.Tensor) -> torch.Tensor:
        """`(batch, width)` twice to logits, `(batch, labels)`."""
        u, v = (side.to(self.output.weight.dtype) for side in (premise, hypothesis))
        features = torch.cat([u, v, (u - v).abs(), u * v], dim=-1)
        return self.output(features if self.hidden is None else self.dropout(F.relu(self.hidden(features))))
