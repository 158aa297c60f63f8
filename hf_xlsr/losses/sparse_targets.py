"""Cross-entropy of a softmax over a large vocabulary against sparse label distributions, in chunks of rows."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from hf_xlsr.errors import XlsrError


def accumulation_dtype(tensor: torch.Tensor) -> torch.dtype:
    """The precision of sums: float64 for float64 input, else float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _matmul_dtype(device_type: str, fallback: torch.dtype) -> torch.dtype:
    """The precision of the matrix products: autocast's when it is on (a custom function is not cast by it)."""
    if fallback == torch.float64 or not torch.is_autocast_enabled(device_type):
        return fallback
    return torch.get_autocast_dtype(device_type)


class _SparseTargetCrossEntropy(torch.autograd.Function):
    """Loss and gradients in one pass over row chunks; at most `chunk_size x vocabulary` logits exist at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        target_ids: torch.Tensor,
        target_probs: torch.Tensor,
        row_weights: torch.Tensor,
        chunk_size: int,
        with_gradient: bool,
    ) -> torch.Tensor:
        accumulate = accumulation_dtype(hidden)
        dtype = _matmul_dtype(hidden.device.type, hidden.dtype)
        table = weight.to(dtype)
        # 1 / (rows x vocabulary) is 0 in float16; the labels' row weights sum to 2 at most, so this cannot overflow.
        boost = 1024.0 if dtype == torch.float16 else 1.0
        total = hidden.new_zeros((), dtype=accumulate)
        if with_gradient:
            grad_hidden = torch.empty_like(hidden)
            grad_weight = torch.zeros_like(weight, dtype=accumulate)
            grad_bias = torch.zeros_like(bias, dtype=accumulate)
        for start in range(0, len(hidden), chunk_size):
            rows = slice(start, start + chunk_size)
            states = hidden[rows].to(dtype)
            ids, scale = target_ids[rows], row_weights[rows].to(accumulate)
            probs = target_probs[rows].to(accumulate) * scale.unsqueeze(1)
            logits = torch.addmm(bias.to(dtype), states, table.T).to(accumulate)  # (chunk, vocabulary)
            normaliser = logits.logsumexp(1)
            mass = probs.sum(1)  # the label's mass times the row's weight; "set" labels sum to less than 1
            total += (mass * normaliser).sum() - (probs * logits.gather(1, ids)).sum()
            if with_gradient:
                # d loss / d logits = mass * softmax - label, written over the logits
                logits.sub_(normaliser.unsqueeze(1)).exp_().mul_(boost * mass.unsqueeze(1))
                logits.scatter_add_(1, ids, -boost * probs)
                grad_bias.add_(logits.sum(0), alpha=1 / boost)
                logits = logits.to(dtype)
                grad_hidden[rows] = ((logits @ table).to(accumulate) / boost).to(hidden.dtype)
                grad_weight.add_(logits.T @ states, alpha=1 / boost)
        if with_gradient:
            ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype), grad_bias.to(bias.dtype))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad_output,) = grad_outputs
        grads = [grad * grad_output.to(grad.dtype) for grad in ctx.saved_tensors]
        return (*grads, None, None, None, None, None)


def sparse_target_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    target_ids: torch.Tensor,
    target_probs: torch.Tensor,
    row_weights: torch.Tensor,
    *,
    chunk_size: int = 128,
) -> torch.Tensor:
    """Sum over rows of `-row_weight * sum_w q(w) log p(w)`, `p` the softmax of `hidden @ weight.T + bias`.

    The gradient is computed together with the value, chunk by chunk, so that neither the logits of all rows nor a
    dense label matrix is ever held: the largest tensor beside the parameters' own gradients is
    `chunk_size x vocabulary`.
    Sums run in float32 (float64 for float64 input); the matrix products follow autocast.

    Args:
        hidden: One state a row, `(rows, width)`.
        weight: The decoder, usually the tied word embeddings, `(vocabulary, width)`.
        bias: `(vocabulary,)`.
        target_ids: The pieces that carry mass, `(rows, targets)`; padded entries may name any piece.
        target_probs: Their mass, `(rows, targets)`; 0 for padded entries. A piece named twice gets the sum.
        row_weights: One factor a row, `(rows,)`; `1 / rows` for a mean.
        chunk_size: Rows a chunk; bounds memory, changes nothing else.

    Returns:
        A scalar, differentiable once in `hidden`, `weight` and `bias`.

    Raises:
        XlsrError: `chunk_size` is below 1.

    Example:
        >>> hidden, weight, bias = torch.zeros(2, 4), torch.zeros(10, 4), torch.zeros(10)
        >>> ids, mass = torch.tensor([[3], [7]]), torch.ones(2, 1)
        >>> sparse_target_cross_entropy(hidden, weight, bias, ids, mass, torch.full((2,), 0.5))  # log 10
        tensor(2.3026)
    """
    if chunk_size < 1:
        raise XlsrError(f"chunk_size is {chunk_size}; hold 1 row of logits or more at a time.")
    with_gradient = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad or bias.requires_grad)
    return _SparseTargetCrossEntropy.apply(
        hidden, weight, bias, target_ids, target_probs, row_weights, chunk_size, with_gradient
    )
