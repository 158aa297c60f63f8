"""Masked language modelling over large vocabularies: only masked positions are decoded, in chunks."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hf_xlsr.losses.sparse_targets import LOGITS, accumulation_dtype, sparse_target_cross_entropy

IGNORE = -100  # torch's label of ignored positions


def masked_lm_loss(
    hidden: torch.Tensor,
    labels: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ignore_index: int = IGNORE,
    chunk_size: int = LOGITS,
) -> torch.Tensor:
    """Mean negative log-likelihood of the masked tokens (BERT's masked LM).

    Args:
        hidden: Token states, `(batch, length, width)`.
        labels: Original tokens at masked positions, `ignore_index` elsewhere, `(batch, length)`.
        weight: Decoder, `(vocabulary, width)`.
        bias: `(vocabulary,)`.
        transform: The prediction head before the decoder, applied to the masked states only.
        ignore_index: Label of ignored positions.
        chunk_size: Maximum number of logits in memory at a time.

    Returns:
        A scalar; exactly 0 (with a graph) when nothing is masked.

    Relations:
        `torch.nn.functional.cross_entropy` on the logits of all positions gives the same value and gradient, with
        `tokens x vocabulary` memory.

    Examples:
        >>> states, labels = torch.zeros(1, 3, 4), torch.tensor([[-100, 5, -100]])
        >>> masked_lm_loss(states, labels, torch.zeros(10, 4), torch.zeros(10))  # log 10
        tensor(2.3026)
    """
    chosen = labels != ignore_index
    states, tokens = hidden[chosen], labels[chosen]
    if transform is not None:
        states = transform(states)
    count = len(tokens)
    dtype = accumulation_dtype(hidden)
    ones = torch.ones(count, 1, device=hidden.device, dtype=dtype)
    row_weights = torch.full((count,), 1 / max(count, 1), device=hidden.device, dtype=dtype)
    return sparse_target_cross_entropy(
        states, weight, bias, tokens.unsqueeze(1), ones, row_weights, chunk_size=chunk_size
    )
