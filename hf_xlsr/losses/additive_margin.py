"""Bitext retrieval with additive margin softmax, section 4.2 of CMLM."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hf_xlsr.losses.sentence_contrast import unit_rows
from hf_xlsr.losses.sparse_targets import accumulation_dtype
from hf_xlsr.utils.errors import XlsrError


def additive_margin_loss(
    source: torch.Tensor, target: torch.Tensor, *, margin: float = 0.3, scale: float = 1.0, normalize: bool = False
) -> torch.Tensor:
    r"""Each sentence has to find its translation in the batch by a margin, in both directions.

    .. math:: L_{br}^s = -\frac{1}{B} \sum_i \log
              \frac{e^{\phi(s_i, t_i) - m}}{e^{\phi(s_i, t_i) - m} + \sum_{j \neq i} e^{\phi(s_i, t_j)}}

    and :math:`L_{br} = L_{br}^s + L_{br}^t` with the source sentences in the denominator of the second. The paper prints
    no logarithm, without which the loss would not be one; Yang et al. (2019), whom it cites, have it. Its `phi` is the
    inner product of the vectors as they are, which is the default. Cosines, as in Yang et al., span only 2 and so take a
    scale: `phi - m` is then `scale * (cosine - margin)`.

    Args:
        source: Sentence vectors `s`, `(batch, width)`. Rows of several processes are gathered before, by
            `hf_xlsr.utils.distributed.gather_with_gradient`.
        target: Vectors `t` of their translations, `(batch, width)`.
        margin: `m`, taken from the similarity of each true pair; 0 leaves it out.
        scale: Multiplies similarities and margin.
        normalize: Compare by cosine instead of the inner product.

    Returns:
        A scalar, computed in float32 (float64 for float64 input), also under autocast.

    Raises:
        XlsrError: the shapes differ, the batch holds fewer than two pairs, or margin or scale are out of their range.

    Relations:
        With `margin=0` it is `alignment_loss` at temperature `1 / scale`.

    Example:
        >>> eye = torch.eye(2)
        >>> additive_margin_loss(eye, eye)  # 2 * log(1 + exp(0 - 0.7))
        tensor(0.8064)
    """
    if source.shape != target.shape:
        raise XlsrError(
            f"source is {tuple(source.shape)} and target {tuple(target.shape)}; give one translation of the same width "
            "for each sentence."
        )
    if len(source) < 2:
        raise XlsrError("bitext retrieval has a batch of fewer than two pairs, which leaves nothing to choose from.")
    if margin < 0 or scale <= 0:
        raise XlsrError(f"margin is {margin} and scale {scale}; use a margin of 0 or more and a scale above 0.")
    if normalize:
        source, target = unit_rows(source), unit_rows(target)
    dtype = accumulation_dtype(source)
    with torch.autocast(source.device.type, enabled=False):
        similarities = source.to(dtype) @ target.to(dtype).T  # (batch, batch)
        logits = scale * (similarities - margin * torch.eye(len(source), device=source.device, dtype=dtype))
        truth = torch.arange(len(logits), device=logits.device)
        return F.cross_entropy(logits, truth) + F.cross_entropy(logits.T, truth)
