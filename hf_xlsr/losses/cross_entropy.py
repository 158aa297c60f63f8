"""Cross-entropy over a large vocabulary against sparse label distributions, in chunks of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

LOGITS = 1 << 23  # maximum number of logits in memory at a time: 32 MiB in float32
IGNORE = -100  # torch's label of ignored positions


def accumulation_dtype(tensor: torch.Tensor) -> torch.dtype:
    """The precision of sums: float64 for float64 input, else float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


class _SparseTargetCrossEntropy(torch.autograd.Function):
    """The value in one pass over the vocabulary, the gradients in a second one; logits are never kept.

    A pass takes some columns of the logits at a time, for all rows. The gradient of the table is written in place.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        sentences: torch.Tensor | None,
        target_ids: torch.Tensor,
        target_probs: torch.Tensor,
        row_weights: torch.Tensor,
        even_mass: float,
        chunk_size: int,
    ) -> torch.Tensor:
        accumulate = accumulation_dtype(hidden)
        device = hidden.device.type
        # Of the matrix products; autocast does not cast the inputs of a custom function.
        ctx.dtype = hidden.dtype
        if hidden.dtype != torch.float64 and torch.is_autocast_enabled(device):
            ctx.dtype = torch.get_autocast_dtype(device)
        ctx.even_mass = even_mass
        ctx.chunk_size = chunk_size

        probs = target_probs.to(accumulate)
        highest = hidden.new_full((len(hidden),), -torch.inf, dtype=accumulate)
        mass = torch.zeros_like(highest)  # of exp(logit - highest)
        expected = torch.zeros_like(highest)  # the mean logit of the labels
        for columns, logits in _chunks(hidden, weight, bias, sentences, ctx.dtype, chunk_size):
            ids, inside = _within(target_ids, columns)
            expected += (probs * inside * logits.gather(1, ids)).sum(1)
            if even_mass:
                expected += even_mass / len(weight) * logits.sum(1)

            raised = torch.maximum(highest, logits.amax(1))
            weights = logits.sub_(raised.unsqueeze(1)).exp_()
            decay = (highest - raised).exp_()
            mass.mul_(decay).add_(weights.sum(1))
            highest = raised

        normaliser = highest + mass.log()
        ctx.save_for_backward(hidden, weight, bias, sentences, target_ids, target_probs, row_weights, normaliser)
        losses = (probs.sum(1) + even_mass) * normaliser - expected
        return (row_weights.to(accumulate) * losses).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, sentences, target_ids, target_probs, row_weights, normaliser = ctx.saved_tensors
        (grad_output,) = grad_outputs
        accumulate = normaliser.dtype
        # In float16 a row's share of one token would underflow, so slopes are multiplied by `boost` before the matrix
        # products and divided by it afterwards. They cannot overflow: the factors of all rows sum to 2 at most.
        boost = 1024.0 if ctx.dtype == torch.float16 else 1.0
        unboost = grad_output.to(accumulate) / boost
        factors = boost * row_weights.to(accumulate).unsqueeze(1)
        label_mass = target_probs.to(accumulate) * factors
        mass = label_mass.sum(1, keepdim=True) + ctx.even_mass * factors  # "set" labels sum to less than 1

        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.zeros_like(hidden, dtype=accumulate)
        grad_weight = torch.zeros_like(weight) if needs_weight else None
        grad_bias = torch.zeros_like(bias) if needs_bias else None
        states = hidden.to(ctx.dtype)
        for columns, logits in _chunks(hidden, weight, bias, sentences, ctx.dtype, ctx.chunk_size):
            # The slope of a logit is mass * softmax - label. It is written over the logit.
            slopes = logits.sub_(normaliser.unsqueeze(1)).exp_().mul_(mass)
            ids, inside = _within(target_ids, columns)
            slopes.scatter_add_(1, ids, -label_mass * inside)
            if ctx.even_mass:
                slopes.sub_(ctx.even_mass / len(weight) * factors)

            if grad_bias is not None and sentences is None:
                grad_bias[columns] = (slopes.sum(0) * unboost).to(bias.dtype)
            elif grad_bias is not None:
                bias_slopes = (slopes * unboost).to(bias.dtype)
                grad_bias[:, columns] = grad_bias[:, columns].index_add(0, sentences, bias_slopes)

            slopes = slopes.to(ctx.dtype)
            if grad_weight is not None:
                products = slopes.T @ states
                grad_weight[columns] = (products.to(accumulate) * unboost).to(weight.dtype)
            if needs_hidden:
                products = slopes @ weight[columns].to(ctx.dtype)
                grad_hidden += products.to(accumulate) * unboost

        grads = (grad_hidden.to(hidden.dtype), grad_weight, grad_bias)
        return (*grads, None, None, None, None, None, None)


def _chunks(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    sentences: torch.Tensor | None,
    dtype: torch.dtype,
    chunk_size: int,
) -> Iterator[tuple[slice, torch.Tensor]]:
    """The logits of all rows, some columns at a time; the caller may write over them."""
    if not len(hidden):
        return

    states = hidden.to(dtype)
    width = max(1, chunk_size // len(hidden))
    for start in range(0, len(weight), width):
        columns = slice(start, min(start + width, len(weight)))
        products = states @ weight[columns].to(dtype).T
        logits = products.to(accumulation_dtype(hidden))
        logits += bias[columns] if sentences is None else bias[:, columns][sentences]
        yield columns, logits


def _within(ids: torch.Tensor, columns: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of tokens in a chunk of the vocabulary, and whether they are inside it."""
    inside = (ids >= columns.start) & (ids < columns.stop)
    return torch.where(inside, ids - columns.start, 0), inside


_sparse_target_cross_entropy: Callable[..., torch.Tensor] = _SparseTargetCrossEntropy.apply


def sparse_target_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    target_ids: torch.Tensor,
    target_probs: torch.Tensor,
    row_weights: torch.Tensor,
    *,
    sentences: torch.Tensor | None = None,
    even_mass: float = 0.0,
    chunk_size: int = LOGITS,
) -> torch.Tensor:
    """Sum over rows of `-row_weight * sum_w q(w) log p(w)`, `p` the softmax of `hidden @ weight.T + bias`.

    It processes the vocabulary in chunks, once for the value and once for the gradient: except for the parameters'
    gradients no memory grows with the vocabulary. Sums run in float32 (float64 for float64 input); the matrix products
    follow autocast.

    Args:
        hidden: States, `(rows, width)`.
        weight: The decoder, usually the tied word embeddings, `(vocabulary, width)`.
        bias: `(vocabulary,)`; with `sentences` one for each of them, `(sentences, vocabulary)`.
        target_ids: Tokens with mass, `(rows, targets)`; padded entries may be any token.
        target_probs: Their mass, `(rows, targets)`; 0 for padded entries. Mass of repeated tokens is added.
        row_weights: A factor for each row, `(rows,)`; `1 / rows` for a mean.
        sentences: The sentence whose bias a row gets, `(rows,)`.
        even_mass: Additional mass of each row, spread evenly over the vocabulary.
        chunk_size: Maximum number of logits in memory at a time, but at least one column. It does not change the result.

    Returns:
        A scalar, differentiable once in `hidden`, `weight` and `bias`.

    Examples:
        >>> hidden, weight, bias = torch.zeros(2, 4), torch.zeros(10, 4), torch.zeros(10)
        >>> ids, mass = torch.tensor([[3], [7]]), torch.ones(2, 1)
        >>> sparse_target_cross_entropy(hidden, weight, bias, ids, mass, torch.full((2,), 0.5))  # log 10
        tensor(2.3026)
    """
    return _sparse_target_cross_entropy(
        hidden, weight, bias, sentences, target_ids, target_probs, row_weights, even_mass, chunk_size
    )


def masked_lm_loss(
    hidden: torch.Tensor,
    labels: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
    label_smoothing: float = 0.0,
    chunk_size: int = LOGITS,
) -> torch.Tensor:
    """Mean negative log-likelihood of the labelled tokens (BERT's masked LM).

    It equals `torch.nn.functional.cross_entropy` on the logits of all positions, without their `tokens x vocabulary`
    memory. HICTL's translation has a bias for each sentence.

    Args:
        hidden: Token states, `(batch, length, width)`, or `(tokens, width)`.
        labels: Original tokens at masked positions, -100 elsewhere, `(batch, length)`, or `(tokens,)`.
        weight: Decoder, `(vocabulary, width)`.
        bias: `(vocabulary,)`, or `(batch, vocabulary)`.
        transform: The prediction head before the decoder, applied to the labelled states only.
        label_smoothing: Share of a label's probability that is spread over the vocabulary.
        chunk_size: Maximum number of logits in memory at a time.

    Returns:
        A scalar; exactly 0 (with a graph) when nothing is masked.

    Examples:
        >>> states, labels = torch.zeros(1, 3, 4), torch.tensor([[-100, 5, -100]])
        >>> masked_lm_loss(states, labels, torch.zeros(10, 4), torch.zeros(10))  # log 10
        tensor(2.3026)
    """
    positions = (labels != IGNORE).nonzero(as_tuple=True)
    states = hidden[positions]
    if transform is not None:
        states = transform(states)

    count = len(states)
    dtype = accumulation_dtype(states)
    label_mass = states.new_full((count, 1), 1 - label_smoothing, dtype=dtype)
    row_weights = states.new_full((count,), 1 / max(count, 1), dtype=dtype)
    return sparse_target_cross_entropy(
        states,
        weight,
        bias,
        labels[positions].unsqueeze(1),
        label_mass,
        row_weights,
        sentences=positions[0] if bias.dim() == 2 else None,
        even_mass=label_smoothing,
        chunk_size=chunk_size,
    )
