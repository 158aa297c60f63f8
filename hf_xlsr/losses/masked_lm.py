"""Cross-entropy of tokens over large vocabularies: only labelled positions are decoded, in chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hf_xlsr.losses.sparse_targets import LOGITS, accumulation_dtype, sparse_target_cross_entropy
from hf_xlsr.utils.errors import XlsrError

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

    It equals `torch.nn.functional.cross_entropy` on the logits of all positions, without their
    `tokens x vocabulary` memory.

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

    Examples:
        >>> states, labels = torch.zeros(1, 3, 4), torch.tensor([[-100, 5, -100]])
        >>> masked_lm_loss(states, labels, torch.zeros(10, 4), torch.zeros(10))  # log 10
        tensor(2.3026)
    """
    positions = (labels != ignore_index).nonzero(as_tuple=True)
    states = hidden[positions] if transform is None else transform(hidden[positions])
    return _mean_loss(states, labels[positions], weight, bias, chunk_size=chunk_size)


def biased_cross_entropy(
    hidden: torch.Tensor,
    labels: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = IGNORE,
    chunk_size: int = LOGITS,
) -> torch.Tensor:
    r"""As `masked_lm_loss`, with a bias for each sentence, `(batch, vocabulary)`, and label smoothing.

    ```math
    p(w \mid t) \propto \exp(h_t^\top e_w + b_{iw})
    ```

    where position `t` belongs to sentence `i`. In HICTL's fine-tuning on translation `b` contains the similarities of
    sentence embedding and words.
    """
    if not 0 <= label_smoothing < 1:
        raise XlsrError(f"`label_smoothing` must be at least 0 and below 1, got {label_smoothing}.")
    positions = (labels != ignore_index).nonzero(as_tuple=True)
    sentences = positions[0] if bias.dim() == 2 else None
    return _mean_loss(hidden[positions], labels[positions], weight, bias, sentences, label_smoothing, chunk_size)


def _mean_loss(
    states: torch.Tensor,
    tokens: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    sentences: torch.Tensor | None = None,
    smoothing: float = 0.0,
    chunk_size: int = LOGITS,
) -> torch.Tensor:
    count = len(tokens)
    options: dict[str, Any] = {"device": states.device, "dtype": accumulation_dtype(states)}
    return sparse_target_cross_entropy(
        states,
        weight,
        bias,
        tokens.unsqueeze(1),
        torch.full((count, 1), 1 - smoothing, **options),
        torch.full((count,), 1 / max(count, 1), **options),
        sentences=sentences,
        even_mass=smoothing,
        chunk_size=chunk_size,
    )
