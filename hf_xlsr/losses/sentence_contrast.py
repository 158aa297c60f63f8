"""Contrast of sentences within a batch, equations 2 to 4 of HICTL."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from hf_xlsr.losses.sparse_targets import accumulation_dtype
from hf_xlsr.utils.errors import XlsrError


def unit_rows(vectors: torch.Tensor) -> torch.Tensor:
    """Rows of length 1, in float32 (float64 for float64 input); a row of zeros stays one.

    Its gradient is then that of an inner product: the gradient of a direction has no bound where the length goes to 0.

    Args:
        vectors: `(rows, width)`.

    Example:
        >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    vectors = vectors.to(accumulation_dtype(vectors))
    return vectors / row_lengths(vectors).unsqueeze(1)


def row_lengths(vectors: torch.Tensor) -> torch.Tensor:
    """The length of each row, 1 for a row of zeros, so that one may divide by it.

    Example:
        >>> row_lengths(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([5., 1.])
    """
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    return lengths.masked_fill(lengths == 0, 1.0)


def check_temperature(temperature: float) -> None:
    """Rejects what cosines cannot be divided by.

    Raises:
        XlsrError: `temperature` is not above 0, or not finite.

    Example:
        >>> check_temperature(0.0)
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: temperature is 0.0; give a finite number above 0, such as 1.0.
    """
    if not 0 < temperature < math.inf:
        raise XlsrError(f"temperature is {temperature}; give a finite number above 0, such as 1.0.")


def sentence_contrast_loss(source: torch.Tensor, target: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
    r"""Each sentence should be nearer to its translation than to all others of the batch, in either language.

    .. math:: L_S = \frac{1}{n} \sum_i L(x_i) + L(y_i), \quad L(x_i) =
              -\log \frac{\exp s(x_i, y_i)}{\exp s(x_i, y_i) + \sum_{j \neq i} \exp s(x_i, y_j) + \exp s(x_i, x_j)}

    with `s` the cosine over the temperature, and `L(y_i)` likewise: 2n - 2 negatives for each sentence. The paper has
    no temperature, which is 1.0; the loss then ends well above 0, since cosines span only 2.

    A vector of zeros has no direction; it counts as orthogonal to all. A sentence that is twice in the batch is a
    negative of itself, as in the paper.

    Args:
        source: Sentence vectors `x`, `(batch, width)`.
        target: Vectors `y` of their translations, `(batch, width)`. Rows of several processes are gathered before, by
            `hf_xlsr.utils.distributed.gather_with_gradient`.
        temperature: Divides the cosines.

    Returns:
        A scalar, computed in float32 (float64 for float64 input), also under autocast.

    Raises:
        XlsrError: the shapes differ, the batch holds fewer than two pairs, or the temperature is out of its range.

    Relations:
        `alignment_loss` with `normalize=True` has the negatives of the other language only, `x` against `y` without `i`.

    Example:
        >>> eye = torch.eye(2)
        >>> sentence_contrast_loss(eye, eye)  # 2 * -log(e / (e + 2))
        tensor(1.1029)
    """
    if source.shape != target.shape:
        raise XlsrError(
            f"source is {tuple(source.shape)} and target {tuple(target.shape)}; give one translation of the same width "
            "for each sentence."
        )
    if len(source) < 2:
        raise XlsrError(
            f"the batch of the sentence-level contrast holds {len(source)} pair{'' if len(source) == 1 else 's'}, which "
            "leaves no negatives; give 2 or more."
        )
    check_temperature(temperature)
    both = unit_rows(torch.cat([source, target]))
    with torch.autocast(both.device.type, enabled=False):
        logits = both @ both.T / temperature  # (2 * batch, 2 * batch)
        own = torch.arange(len(both), device=both.device)
        logits[own, own] = -math.inf
        return 2 * F.cross_entropy(logits, own.roll(len(source)))
