"""Contrast of sentences within a batch, equations 2 to 4 of HICTL."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from hf_xlsr.losses.gradient_cache import sum_over_blocks
from hf_xlsr.losses.sparse_targets import accumulation_dtype
from hf_xlsr.utils.errors import XlsrError


def unit_rows(vectors: torch.Tensor) -> torch.Tensor:
    """Rows of length 1, in float32 (float64 for float64 input); a row of zeros stays a row of zeros.

    Its gradient is that of an inner product, since the gradient of a direction is unbounded near length 0.
    """
    vectors = vectors.to(accumulation_dtype(vectors))
    return vectors / row_lengths(vectors).unsqueeze(1)


def row_lengths(vectors: torch.Tensor) -> torch.Tensor:
    """The length of each row, 1 for a row of zeros, for safe division."""
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    return lengths.masked_fill(lengths == 0, 1.0)


def check_shapes(rows: int = 0, **tensors: torch.Tensor) -> None:
    """Checks that tensors have one shape, which broadcasting would hide, and enough rows."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1 or any(shape[0] < rows for shape in shapes.values()):
        given = ", ".join(f"`{name}` {shape}" for name, shape in shapes.items())
        raise XlsrError(f"Shapes must be equal, with at least {rows} rows, got {given}.")


def check_temperature(temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise XlsrError(f"`temperature` must be above 0 and finite, got {temperature}.")


def _interpolated_cosines(
    cosines: torch.Tensor, rows: torch.Tensor, candidates: torch.Tensor, positives: torch.Tensor, hardness: float
) -> torch.Tensor:
    """Cosines of each row and `row + share * (candidate - row)`, from norms and cosines: no vector of a pair is made."""
    rows, candidates = rows.to(cosines.dtype), candidates.to(cosines.dtype)
    with torch.no_grad():
        distances = torch.cdist(rows, candidates)
        ratios = distances.gather(1, positives.unsqueeze(1)) / distances
        shares = ratios.nan_to_num(1.0).clamp(max=1.0) ** hardness
    own = (1 - shares) * torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    other = shares * torch.linalg.vector_norm(candidates, dim=1)
    squares = own**2 + 2 * own * other * cosines + other**2
    return (own + other * cosines) / squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()


def sentence_contrast_loss(
    source: torch.Tensor,
    target: torch.Tensor,
    negatives: torch.Tensor | None = None,
    *,
    temperature: float = 1.0,
    hardness: float = 0.0,
) -> torch.Tensor:
    r"""Contrast of each sentence and its translation with all other sentences of the batch, in both languages.

    ```math
    L_S = \frac{1}{n} \sum_i L(x_i) + L(y_i), \quad L(x_i) =
    -\log \frac{\exp s(x_i, y_i)}{\exp s(x_i, y_i) + \sum_{j \neq i} \exp s(x_i, y_j) + \exp s(x_i, x_j)}
    ```

    with `s` the cosine over the temperature, and `L(y_i)` likewise: 2n - 2 negatives for each sentence. The paper has
    no temperature, which is 1.0; the loss then stays well above 0.

    With `hardness`, each negative `k` of a sentence `x` moves towards it (the published HICTL, ICLR 2021, section 3.2):

    ```math
    \hat k = x + \lambda (k - x), \quad \lambda = (d^+ / d^-)^h \text{ where } d^- > d^+, \text{ else } 1
    ```

    with `d+` and `d-` the Euclidean distances of `x` to its translation and to `k`. At 1 it is as near as the
    translation. Here no gradient flows through `λ`.

    A vector of zeros is orthogonal to all. A sentence that is twice in the batch is a negative of itself, as in the
    paper.

    Args:
        source: `x`, `(batch, width)`; with several processes gathered by `gather_with_gradient`.
        target: `y`, the translations, `(batch, width)`.
        negatives: Hard negatives in either language, `(negatives, width)`: further candidates of all `x_i` and `y_i`.
        temperature: Divides the cosines.
        hardness: Exponent `h`, from 0 (negatives as they are) to 1.

    Returns:
        A scalar, computed in float32 (float64 for float64 input), also under autocast.

    Examples:
        >>> eye = torch.eye(2)
        >>> sentence_contrast_loss(eye, eye)  # 2 * -log(e / (e + 2))
        tensor(1.1029)
    """
    check_shapes(source=source, target=target, rows=2)
    check_temperature(temperature)
    both = torch.cat([source, target])
    vectors = both if negatives is None else torch.cat([both, negatives])
    candidates, own = unit_rows(vectors), torch.arange(len(both), device=both.device)
    positives = own.roll(len(source))

    def loss(rows: torch.Tensor, vector: torch.Tensor, own: torch.Tensor, positives: torch.Tensor) -> torch.Tensor:
        logits = rows @ candidates.T  # (rows, 2 * batch + negatives)
        if hardness:
            logits = _interpolated_cosines(logits, vector, vectors, positives, hardness)
        logits = logits / temperature
        logits[torch.arange(len(own), device=own.device), own] = -math.inf
        return F.cross_entropy(logits, positives, reduction="sum")

    with torch.autocast(both.device.type, enabled=False):
        rows = candidates[: len(both)], both, own, positives
        return 2 * (sum_over_blocks(loss, *rows, columns=len(candidates)) / len(both))
