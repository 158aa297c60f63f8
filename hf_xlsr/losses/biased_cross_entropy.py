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
    r"""Mean negative log-likelihood of target tokens under logits with a bias for each sentence.

    ```math
    p(w \mid t) \propto \exp(h_t^\top e_w + b_{iw})
    ```

    where position `t` belongs to sentence `i`. In HICTL's fine-tuning on translation `b` contains the similarities of
    sentence embedding and words. The vocabulary is processed in chunks (see `sparse_target_cross_entropy`): except for
    the gradients no memory grows with it. Sums run in float32 (float64 for float64 input); the matrix products follow
    autocast.

    Args:
        hidden: Decoder states, `(batch, length, width)`.
        labels: Target tokens, `ignore_index` at ignored positions, `(batch, length)`.
        weight: Output embeddings, `(vocabulary, width)`.
        bias: Shared, `(vocabulary,)`, or for each sentence, `(batch, vocabulary)`.
        label_smoothing: Share of a label's probability that is spread evenly over the vocabulary.
        ignore_index: Label of ignored positions.
        chunk_size: Maximum number of logits in memory at a time.

    Returns:
        A scalar, the mean over the other positions, differentiable once in `hidden`, `weight` and `bias`; exactly 0 (with
        a graph) without any.

    Raises:
        XlsrError: `label_smoothing` is not in [0, 1), or `chunk_size` is below 1.

    Relations:
        `torch.nn.functional.cross_entropy` on `hidden @ weight.T + bias[:, None]` gives the same value and gradient,
        with `tokens x vocabulary` memory.

    Examples:
        >>> hidden, labels = torch.zeros(2, 3, 4), torch.tensor([[1, 2, -100], [7, -100, -100]])
        >>> biased_cross_entropy(hidden, labels, torch.zeros(10, 4), torch.zeros(2, 10))  # log 10
        tensor(2.3026)
    """
    if not 0 <= label_smoothing < 1:
        raise XlsrError(f"`label_smoothing` must be at least 0 and below 1, got {label_smoothing}.")
    sentences, positions = (labels != ignore_index).nonzero(as_tuple=True)
    tokens, dtype = labels[sentences, positions].unsqueeze(1), accumulation_dtype(hidden)
    count = len(tokens)
    return sparse_target_cross_entropy(
        hidden[sentences, positions],
        weight,
        bias,
        tokens,
        torch.full((count, 1), 1 - label_smoothing, device=hidden.device, dtype=dtype),
        torch.full((count,), 1 / max(count, 1), device=hidden.device, dtype=dtype),
        sentences=sentences if bias.dim() == 2 else None,
        even_mass=label_smoothing,
        chunk_size=chunk_size,
    )
