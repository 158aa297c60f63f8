"""In-batch retrieval of translations with an additive margin, section 4.2 of CMLM."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hf_xlsr.losses.in_batch import check_shapes, contrast_both_ways


def additive_margin_loss(
    source: torch.Tensor,
    target: torch.Tensor,
    negatives: torch.Tensor | None = None,
    *,
    margin: float = 0.3,
    scale: float = 1.0,
    normalize: bool = False,
    split_softmax: bool = False,
) -> torch.Tensor:
    r"""In-batch retrieval of translations with an additive margin in both directions, section 4.2 of CMLM.

    ```math
    L_{br}^s = -\frac{1}{B} \sum_i \log
    \frac{e^{\phi(s_i, t_i) - m}}{e^{\phi(s_i, t_i) - m} + \sum_{j \neq i} e^{\phi(s_i, t_j)}}
    ```

    and `L_{br} = L_{br}^s + L_{br}^t`, with the source sentences in the denominator of the second. The margin keeps
    translations nearer than all others by that much, which helps where pairs are mined by a threshold. The paper prints
    no logarithm, which Yang et al. (2019), its source, have. Its `phi` is the inner product, the default. With
    `margin=0` it is `alignment_loss` at temperature `1 / scale`.

    Args:
        source: `s`, `(batch, width)`; with several processes gathered by `gather_with_gradient`.
        target: `t`, the translations, `(batch, width)`.
        negatives: Hard negatives in the language of the targets, `(negatives, width)`: further `t_j` of `L_{br}^s`,
            without margin.
        margin: `m`, subtracted from the similarity of each pair.
        scale: Multiplies similarities and margin: cosines are between -1 and 1 and need one.
        normalize: Compare by cosine instead of the inner product.
        split_softmax: Normalise hard negatives apart, see `hf_xlsr.losses.in_batch.split_cross_entropy`.

    Examples:
        >>> eye = torch.eye(2)
        >>> additive_margin_loss(eye, eye)  # 2 * log(1 + exp(0 - 0.7))
        tensor(0.8064)
    """
    check_shapes(source=source, target=target)

    def logits(similarities: torch.Tensor, translations: torch.Tensor) -> torch.Tensor:
        is_translation = F.one_hot(translations, similarities.shape[1]).to(similarities.dtype)
        return scale * (similarities - margin * is_translation)

    return contrast_both_ways(source, target, negatives, normalize, logits, split_softmax)
