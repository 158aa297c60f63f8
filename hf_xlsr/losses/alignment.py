"""In-batch sentence alignment, equation 5 of the lightweight dual transformer."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hf_xlsr.losses.gradient_cache import contrast_both_ways


def alignment_loss(
    source: torch.Tensor,
    target: torch.Tensor,
    negatives: torch.Tensor | None = None,
    *,
    temperature: float = 1.0,
    normalize: bool = False,
    identities: torch.Tensor | None = None,
) -> torch.Tensor:
    r"""In-batch retrieval of translations, in both directions.

    ```math
    L_{align} = -\sum_j \log \frac{\exp(u_j^\top v_j)}{\sum_k \exp(u_j^\top v_k)}
    + \log \frac{\exp(u_j^\top v_j)}{\sum_k \exp(u_k^\top v_j)}
    ```

    averaged over `j`. The paper uses the inner product (footnote 5), the default. With `normalize=True` and
    `temperature=0.05`, half of it is sentence-transformers' `MultipleNegativesRankingLoss` (scale 20) made symmetric.

    Args:
        source: `u`, `(batch, width)`.
        target: `v`, the translations, `(batch, width)`.
        negatives: Hard negatives in the language of the targets, `(negatives, width)`: further `v_k` of the first term.
        temperature: Divides the similarities.
        normalize: Compare by cosine instead of the inner product.
        identities: A number for each source and each target, equal for equal texts, `(2, batch)`, int64. Two pairs with
            an equal source or target are then not negatives of each other.

    Returns:
        A scalar, computed in float32 (float64 for float64 input).

    Examples:
        >>> eye = 20.0 * torch.eye(3)
        >>> bool(alignment_loss(eye, eye) < 1e-6)
        True
    """
    candidates = target if negatives is None else torch.cat([target, negatives])
    if source.dtype != torch.float64:
        source, candidates = source.float(), candidates.float()
    if normalize:
        source, candidates = F.normalize(source, dim=-1), F.normalize(candidates, dim=-1)
    with torch.autocast(source.device.type, enabled=False):
        return contrast_both_ways(
            source, candidates, lambda similarities, own: _without_equals(similarities / temperature, own, identities)
        )


def _without_equals(logits: torch.Tensor, own: torch.Tensor, identities: torch.Tensor | None) -> torch.Tensor:
    """Masks pairs that share a text with the pair of the row; `own` has the number of that pair."""
    if identities is None:
        return logits
    equal = (identities[:, own, None] == identities[:, None, :]).any(0)
    equal[torch.arange(len(own), device=own.device), own] = False
    return logits.masked_fill(F.pad(equal, (0, logits.shape[1] - equal.shape[1])), float("-inf"))
