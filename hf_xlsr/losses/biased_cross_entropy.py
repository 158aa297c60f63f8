"""Cross-entropy of a decoder over a large vocabulary whose logits have a bias for each sentence, in chunks of rows."""

from __future__ import annotations

from math import log
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from hf_xlsr.errors import XlsrError
from hf_xlsr.losses.sparse_targets import _matmul_dtype, accumulation_dtype


class _BiasedCrossEntropy(torch.autograd.Function):
    """Mean loss and its gradients in one pass; at most `chunk_size x vocabulary` logits exist at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        sentences: torch.Tensor,
        pieces: torch.Tensor,
        label_smoothing: float,
        chunk_size: int,
        wanted: tuple[bool, bool, bool],
    ) -> torch.Tensor:
        accumulate = accumulation_dtype(hidden)
        dtype = _matmul_dtype(hidden.device.type, hidden.dtype)
        table, vocabulary, count = weight.to(dtype), len(weight), max(len(hidden), 1)
        # What a row's gradient sums to is 1 / rows; float16 would round the share of a single piece of it to 0.
        boost = 1024.0 if dtype == torch.float16 else 1.0
        scale, even = boost / count, label_smoothing / vocabulary
        total = hidden.new_zeros((), dtype=accumulate)
        grads = [
            torch.zeros_like(part, dtype=accumulate) if needed else None
            for part, needed in zip((hidden, weight, bias), wanted, strict=True)
        ]
        grad_hidden, grad_weight, grad_bias = grads
        for start in range(0, len(hidden), chunk_size):
            rows = slice(start, start + chunk_size)
            states, targets, sentence = hidden[rows].to(dtype), pieces[rows].unsqueeze(1), sentences[rows]
            logits = (states @ table.T).to(accumulate)  # (chunk, vocabulary)
            logits += bias[sentence] if len(bias) > 1 else bias
            normaliser = logits.logsumexp(1)
            total += normaliser.sum() - (1 - label_smoothing) * logits.gather(1, targets).sum()
            if even:
                total -= even * logits.sum()
            if not any(wanted):
                continue
            # scale * d loss / d logits = scale * (softmax - smoothed label), written over the logits
            logits.sub_(normaliser.unsqueeze(1) - log(scale)).exp_()
            if even:
                logits.sub_(scale * even)
            logits.scatter_add_(1, targets, logits.new_full((1, 1), scale * (label_smoothing - 1)).expand_as(targets))
            if grad_bias is not None and len(bias) > 1:
                grad_bias.index_add_(0, sentence, logits, alpha=1 / boost)
            elif grad_bias is not None:
                grad_bias.add_(logits.sum(0), alpha=1 / boost)
            logits = logits.to(dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = (logits @ table).to(accumulate) / boost
            if grad_weight is not None:
                grad_weight.add_(logits.T @ states, alpha=1 / boost)
        ctx.save_for_backward(
            *(
                None if grad is None else grad.to(part.dtype)
                for grad, part in zip(grads, (hidden, weight, bias), strict=True)
            )
        )
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad_output,) = grad_outputs
        grads = [None if grad is None else grad * grad_output.to(grad.dtype) for grad in ctx.saved_tensors]
        return (*grads, None, None, None, None, None)


def biased_cross_entropy(
    hidden: torch.Tensor,
    labels: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    chunk_size: int = 128,
) -> torch.Tensor:
    r"""Mean negative log-likelihood of target pieces under logits that each sentence shifts in its own way.

    .. math:: p(w \mid t) \propto \exp(h_t^\top e_w + b_{iw})

    where position `t` belongs to sentence `i`. In HICTL's fine-tuning on translation `b` holds the similarities of the
    sentence vector and all words. The gradient is computed together with the value, chunk by chunk: beside the
    parameters' own gradients and that of `bias`, the largest tensor is `chunk_size x vocabulary`. Sums run in float32
    (float64 for float64 input); the matrix products follow autocast.

    Args:
        hidden: Decoder states, `(batch, length, width)`.
        labels: The piece that each position is to predict, `ignore_index` where none is, `(batch, length)`.
        weight: Output embeddings, `(vocabulary, width)`.
        bias: Of every sentence, `(vocabulary,)`, or of each, `(batch, vocabulary)`.
        label_smoothing: Share of the probability that the label spreads evenly over the vocabulary.
        ignore_index: Label of positions that do not count.
        chunk_size: Rows of logits held at a time.

    Returns:
        A scalar, the mean over the positions that count, differentiable once in `hidden`, `weight` and `bias`; exactly 0
        (with a graph) when none counts.

    Raises:
        XlsrError: `label_smoothing` is no share, or `chunk_size` is below 1.

    Relations:
        `torch.nn.functional.cross_entropy` on `hidden @ weight.T + bias[:, None]` gives the same value and gradient,
        with `tokens x vocabulary` memory.

    Example:
        >>> hidden, labels = torch.zeros(2, 3, 4), torch.tensor([[1, 2, -100], [7, -100, -100]])
        >>> biased_cross_entropy(hidden, labels, torch.zeros(10, 4), torch.zeros(2, 10))  # log 10
        tensor(2.3026)
    """
    if chunk_size < 1:
        raise XlsrError(f"chunk_size is {chunk_size}; hold 1 row of logits or more at a time.")
    if not 0 <= label_smoothing < 1:
        raise XlsrError(f"label_smoothing is {label_smoothing}; it is a share, 0 or above and less than 1.")
    sentences, positions = (labels != ignore_index).nonzero(as_tuple=True)
    with_gradient = torch.is_grad_enabled()
    bias = bias.unsqueeze(0) if bias.dim() == 1 else bias
    return _BiasedCrossEntropy.apply(
        hidden[sentences, positions],
        weight,
        bias,
        sentences,
        labels[sentences, positions],
        label_smoothing,
        chunk_size,
        tuple(with_gradient and part.requires_grad for part in (hidden, weight, bias)),
    )
