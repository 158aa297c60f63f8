"""Cross-entropy of a decoder over a large vocabulary whose logits have a bias for each sentence, in chunks."""

from __future__ import annotations

import torch

from hf_xlsr.losses.sparse_targets import LOGITS, accumulation_dtype, sparse_target_cross_entropy
from hf_xlsr.utils.errors import XlsrError


def biased_cross_entropy(
    hidden: torch.Tensor,
    labels: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    chunk_size: int = LOGITS,
) -> torch.Tensor:
    r"""Mean negative log-likelihood of target pieces under logits that each sentence shifts in its own way.

    .. math:: p(w \mid t) \propto \exp(h_t^\top e_w + b_{iw})

    where position `t` belongs to sentence `i`. In HICTL's fine-tuning on translation `b` holds the similarities of the
    sentence vector and all words. The vocabulary is gone through in chunks
    (see `sparse_target_cross_entropy`): beside the gradients, nothing grows with it. Sums run in float32
    (float64 for float64 input); the matrix products follow autocast.

    Args:
        hidden: Decoder states, `(batch, length, width)`.
        labels: The piece that each position is to predict, `ignore_index` where none is, `(batch, length)`.
        weight: Output embeddings, `(vocabulary, width)`.
        bias: Of every sentence, `(vocabulary,)`, or of each, `(batch, vocabulary)`.
        label_smoothing: Share of the probability that the label spreads evenly over the vocabulary.
        ignore_index: Label of positions that do not count.
        chunk_size: Logits held at a time.

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
    if not 0 <= label_smoothing < 1:
        raise XlsrError(f"label_smoothing is {label_smoothing}; it is a share, 0 or above and less than 1.")
    sentences, positions = (labels != ignore_index).nonzero(as_tuple=True)
    pieces, dtype = labels[sentences, positions].unsqueeze(1), accumulation_dtype(hidden)
    count = len(pieces)
    return sparse_target_cross_entropy(
        hidden[sentences, positions],
        weight,
        bias,
        pieces,
        torch.full((count, 1), 1 - label_smoothing, device=hidden.device, dtype=dtype),
        torch.full((count,), 1 / max(count, 1), device=hidden.device, dtype=dtype),
        sentences=sentences if bias.dim() == 2 else None,
        even_mass=label_smoothing,
        chunk_size=chunk_size,
    )
