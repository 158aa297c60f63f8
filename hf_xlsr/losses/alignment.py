"""In-batch retrieval of translations, equation 5 of the lightweight dual transformer."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from hf_xlsr.losses.in_batch import contrast_both_ways


def alignment_loss(
    source: torch.Tensor,
    target: torch.Tensor,
    negatives: torch.Tensor | None = None,
    *,
    temperature: float = 1.0,
    normalize: bool = False,
    identities: torch.Tensor | None = None,
    split_softmax: bool = False,
) -> torch.Tensor:
    r"""In-batch retrieval of translations in both directions, equation 5 of the lightweight dual transformer.

    ```math
    L_{align} = -\sum_j \log \frac{\exp(u_j^\top v_j)}{\sum_k \exp(u_j^\top v_k)}
    + \log \frac{\exp(u_j^\top v_j)}{\sum_k \exp(u_k^\top v_j)}
    ```

    averaged over `j`. It is the first loss to try on translation pairs; batches of some hundred pairs and more have
    negatives that are hard enough. The paper uses the inner product (footnote 5), the default. With `normalize=True`,
    half of it is sentence-transformers' `MultipleNegativesRankingLoss` made symmetric. `queue_info_nce` has negatives of
    earlier batches, too.

    Args:
        source: `u`, `(batch, width)`.
        target: `v`, the translations, `(batch, width)`.
        negatives: Hard negatives in the language of the targets, `(negatives, width)`: further `v_k` of the first term.
        temperature: Divides the similarities.
        normalize: Compare by cosine instead of the inner product.
        identities: A number for each source and each target, equal for equal texts, `(2, batch)`, int64. Two pairs with
            an equal source or target are then not negatives of each other.
        split_softmax: Normalise hard negatives apart, see `hf_xlsr.losses.in_batch.split_cross_entropy`.

    Examples:
        >>> eye = 20.0 * torch.eye(3)
        >>> bool(alignment_loss(eye, eye) < 1e-6)
        True
    """

    def logits(similarities: torch.Tensor, translations: torch.Tensor) -> torch.Tensor:
        similarities = similarities / temperature
        if identities is None:
            return similarities

        is_equal = identities[:, translations, None] == identities[:, None, :]
        is_no_negative = is_equal.any(0)
        rows = torch.arange(len(translations), device=translations.device)
        is_no_negative[rows, translations] = False
        num_hard_negatives = similarities.shape[1] - is_no_negative.shape[1]
        return similarities.masked_fill(F.pad(is_no_negative, (0, num_hard_negatives)), -math.inf)

    return contrast_both_ways(source, target, negatives, normalize, logits, split_softmax)
