"""Divergence of predicted tokens from label distributions, equation 2 of the lightweight dual transformer."""

from __future__ import annotations

import torch

from hf_xlsr.losses.cross_entropy import LOGITS, accumulation_dtype, sparse_target_cross_entropy


def generative_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    target_ids: torch.Tensor,
    target_probs: torch.Tensor,
    *,
    chunk_size: int = LOGITS,
) -> torch.Tensor:
    r"""Divergence of predicted tokens from label distributions, equation 2, averaged over pairs.

    ```math
    D_{KL}(q(S_l) \,\|\, p(h_{S_l})) + D_{KL}(q(S_{l'}) \,\|\, p(h_{S_{l'}}))
    ```

    With one-hot rows (`smlm`) the entropy of `q` is 0 and this is equation 1.

    Args:
        hidden: States after the fully connected layer, `(2 * batch, width)`.
        weight: Tied word embeddings, `(vocabulary, width)`.
        bias: `(vocabulary,)`.
        target_ids: Tokens with mass, `(2 * batch, targets)`, such as those of the model's `generative_labels`.
        target_probs: Likewise; tokens must not repeat within a row.
        chunk_size: Maximum number of logits in memory at a time.

    Examples:
        >>> labels = torch.tensor([[5, 6], [3, 4]]), torch.full((2, 2), 0.5)  # the tokens of each row's translation
        >>> generative_loss(torch.zeros(2, 8), torch.zeros(16, 8), torch.zeros(16), *labels)  # 2 (log 16 - log 2)
        tensor(4.1589)
    """
    pairs = max(len(hidden) // 2, 1)
    target_probs = target_probs.to(accumulation_dtype(hidden))
    row_weights = hidden.new_full((len(hidden),), 1 / pairs, dtype=target_probs.dtype)

    cross_entropy = sparse_target_cross_entropy(
        hidden, weight, bias, target_ids, target_probs, row_weights, chunk_size=chunk_size
    )
    negative_entropy = torch.xlogy(target_probs, target_probs).sum() / pairs
    return cross_entropy + negative_entropy
