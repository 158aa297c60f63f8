"""Bitext retrieval with additive margin softmax, section 4.2 of CMLM."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hf_xlsr.losses.gradient_cache import contrast_both_ways
from hf_xlsr.losses.sentence_contrast import check_shapes, unit_rows
from hf_xlsr.losses.sparse_targets import accumulation_dtype


def additive_margin_loss(
    source: torch.Tensor,
    target: torch.Tensor,
    negatives: torch.Tensor | None = None,
    *,
    margin: float = 0.3,
    scale: float = 1.0,
    normalize: bool = False,
) -> torch.Tensor:
    r"""In-batch retrieval of translations with an additive margin, in both directions.

    ```math
    L_{br}^s = -\frac{1}{B} \sum_i \log
    \frac{e^{\phi(s_i, t_i) - m}}{e^{\phi(s_i, t_i) - m} + \sum_{j \neq i} e^{\phi(s_i, t_j)}}
    ```

    and `L_{br} = L_{br}^s + L_{br}^t`, with the source sentences in the denominator of the second. The paper prints
    no logarithm, which Yang et al. (2019), its source, have. Its `phi` is the inner product, the default. Cosines, as in
    Yang et al., are between -1 and 1 and need a scale: `phi - m` is then `scale * (cosine - margin)`.

    Args:
        source: Sentence embeddings `s`, `(batch, width)`. Gather the rows of several processes first, with
            `hf_xlsr.utils.distributed.gather_with_gradient`.
        target: Embeddings `t` of their translations, `(batch, width)`.
        negatives: Hard negatives, `(negatives, width)`: sentences in the language of the targets, further `t_j` in the
            denominators of `L_{br}^s`, without margin. In those of `L_{br}^t` are sources only.
        margin: `m`, subtracted from the similarity of each pair; 0 disables it.
        scale: Multiplies similarities and margin.
        normalize: Compare by cosine instead of the inner product.

    Returns:
        A scalar, computed in float32 (float64 for float64 input), also under autocast.

    Raises:
        XlsrError: the shapes differ, or the batch has fewer than two pairs.

    Relations:
        With `margin=0` it is `alignment_loss` at temperature `1 / scale`.

    Examples:
        >>> eye = torch.eye(2)
        >>> additive_margin_loss(eye, eye)  # 2 * log(1 + exp(0 - 0.7))
        tensor(0.8064)
    """
    check_shapes(source=source, target=target, rows=2)
    candidates = target if negatives is None else torch.cat([target, negatives])
    if normalize:
        source, candidates = unit_rows(source), unit_rows(candidates)
    dtype = accumulation_dtype(source)

    def logits(similarities: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        return scale * (similarities - margin * F.one_hot(own, similarities.shape[1]).to(dtype))

    with torch.autocast(source.device.type, enabled=False):
        return contrast_both_ways(source.to(dtype), candidates.to(dtype), logits)
