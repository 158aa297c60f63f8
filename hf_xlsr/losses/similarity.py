"""Equality of the similarity structures in both languages, equation 6 of the lightweight dual transformer."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from hf_xlsr.losses.in_batch import precise, sum_over_blocks
from hf_xlsr.utils.errors import require_choice


def similarity_loss(
    source: torch.Tensor,
    target: torch.Tensor,
    *,
    temperature: float = 1.0,
    normalize: bool = False,
    reduction: str = "batchmean",
    epsilon: float = 1e-4,
) -> torch.Tensor:
    r"""Equality of the similarity structures in both languages, equation 6 of the lightweight dual transformer.

    ```math
    L_{sim} = -\sum_{j_1, j_2} \log \cos \frac{\pi}{2} \left(
    \frac{\exp(u_{j_1}^\top u_{j_2})}{\sum_k \exp(u_{j_1}^\top u_k)} -
    \frac{\exp(v_{j_1}^\top v_{j_2})}{\sum_k \exp(v_{j_1}^\top v_k)} \right)
    ```

    It stands beside `alignment_loss`: alone it does not bring translations together.

    At a difference of exactly 1 the cosine is 0 (slightly below in float32) and its logarithm is not a number, so the
    difference is clamped to `1 - epsilon`. The clamp has no gradient, so the slope is bounded by `1 / epsilon`.

    Args:
        source: `u`, `(batch, width)`.
        target: `v`, the translations, `(batch, width)`.
        temperature: Divides the similarities before the softmax.
        normalize: Compare by cosine instead of the inner product.
        reduction: `batchmean` divides the sum over the matrix by the batch size; `sum` (the released code) does not, and
            so grows with the batch.
        epsilon: Minimum distance of the difference from 1.

    Examples:
        >>> vectors = torch.randn(4, 8)
        >>> similarity_loss(vectors, vectors)
        tensor(0.)
    """
    require_choice("reduction", reduction, ("batchmean", "sum"))
    source, target = precise(source, target, normalize=normalize)

    def loss(rows: torch.Tensor, translations: torch.Tensor) -> torch.Tensor:
        source_shares = F.softmax(rows @ source.T / temperature, 1)
        target_shares = F.softmax(translations @ target.T / temperature, 1)
        difference = (source_shares - target_shares).clamp(-1 + epsilon, 1 - epsilon)
        cosines = torch.cos(math.pi / 2 * difference)
        return -torch.log(cosines).sum()

    with torch.autocast(source.device.type, enabled=False):
        total = sum_over_blocks(loss, source, target, columns=len(source)) + 0.0  # 0 for -0
        if reduction == "sum":
            return total
        return total / len(source)
