"""Losses of the sentence embeddings of a batch, in blocks of rows.

Each is a scalar, computed in float32 (float64 for float64 input), also under autocast.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from hf_xlsr.losses.vocabulary import accumulation_dtype
from hf_xlsr.utils.errors import XlsrError, require_choice

# Similarities in memory at a time: batches of up to 362 pairs are one block.
SIMILARITIES = 2**17
SIMILARITY_REDUCTIONS = ("batchmean", "sum")
TEACHER_LOSSES = ("cosine", "mse")


def row_lengths(vectors: torch.Tensor) -> torch.Tensor:
    """The length of each row, 1 for a row of zeros, for safe division."""
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    return lengths.masked_fill(lengths == 0, 1.0)


def unit_rows(vectors: torch.Tensor) -> torch.Tensor:
    """Rows of length 1, in float32 (float64 for float64 input); a row of zeros stays a row of zeros.

    Its gradient is that of an inner product, since the gradient of a direction is unbounded near length 0.
    """
    vectors = vectors.to(accumulation_dtype(vectors))
    return vectors / row_lengths(vectors).unsqueeze(1)


def check_shapes(**tensors: torch.Tensor) -> None:
    """Checks that tensors have one shape, which broadcasting would hide."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        raise XlsrError(
            f"Shapes must be equal, got {', '.join(f'`{name}` {shape}' for name, shape in shapes.items())}."
        )


def check_temperature(temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise XlsrError(f"`temperature` must be above 0 and finite, got {temperature}.")


def _precise(*embeddings: torch.Tensor, normalize: bool = False) -> list[torch.Tensor]:
    """Embeddings in the precision of sums; with `normalize` of length 1."""
    dtype = accumulation_dtype(embeddings[0])
    return [unit_rows(rows.to(dtype)) if normalize else rows.to(dtype) for rows in embeddings]


def sum_over_blocks(loss: Callable[..., torch.Tensor], *rows: torch.Tensor, columns: int) -> torch.Tensor:
    """Adds up a loss over blocks of rows, whose similarities the backward pass computes again.

    At most `SIMILARITIES` are in memory; `columns` is their number in a row.
    """
    block = max(1, SIMILARITIES // columns)
    if len(rows[0]) <= block:
        return loss(*rows)
    parts = zip(*(row.split(block) for row in rows), strict=True)
    return torch.stack([checkpoint(loss, *part, use_reentrant=False) for part in parts]).sum()


def _contrast_both_ways(
    source: torch.Tensor,
    target: torch.Tensor,
    negatives: torch.Tensor | None,
    normalize: bool,
    logits: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Cross-entropy of each sentence's translation, averaged over sentences; the sum of both directions.

    `logits` gets `(rows, columns)` inner products and the column of each row's translation.
    """
    candidates = target if negatives is None else torch.cat([target, negatives])
    source, candidates = _precise(source, candidates, normalize=normalize)
    truth = torch.arange(len(source), device=source.device)

    def direction(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        def loss(rows: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(logits(rows @ keys.T, own), own, reduction="sum")

        return sum_over_blocks(loss, queries, truth, columns=len(keys))

    with torch.autocast(source.device.type, enabled=False):
        if len(source) * len(candidates) <= SIMILARITIES:  # one matrix for both directions
            whole = logits(source @ candidates.T, truth)
            return F.cross_entropy(whole, truth) + F.cross_entropy(whole[:, : len(source)].T, truth)
        return (direction(source, candidates) + direction(candidates[: len(source)], source)) / len(source)


def alignment_loss(
    source: torch.Tensor,
    target: torch.Tensor,
    negatives: torch.Tensor | None = None,
    *,
    temperature: float = 1.0,
    normalize: bool = False,
    identities: torch.Tensor | None = None,
) -> torch.Tensor:
    r"""In-batch retrieval of translations in both directions, equation 5 of the lightweight dual transformer.

    ```math
    L_{align} = -\sum_j \log \frac{\exp(u_j^\top v_j)}{\sum_k \exp(u_j^\top v_k)}
    + \log \frac{\exp(u_j^\top v_j)}{\sum_k \exp(u_k^\top v_j)}
    ```

    averaged over `j`. The paper uses the inner product (footnote 5), the default. With `normalize=True`, half of it is
    sentence-transformers' `MultipleNegativesRankingLoss` made symmetric.

    Args:
        source: `u`, `(batch, width)`.
        target: `v`, the translations, `(batch, width)`.
        negatives: Hard negatives in the language of the targets, `(negatives, width)`: further `v_k` of the first term.
        temperature: Divides the similarities.
        normalize: Compare by cosine instead of the inner product.
        identities: A number for each source and each target, equal for equal texts, `(2, batch)`, int64. Two pairs with
            an equal source or target are then not negatives of each other.

    Examples:
        >>> eye = 20.0 * torch.eye(3)
        >>> bool(alignment_loss(eye, eye) < 1e-6)
        True
    """

    def logits(similarities: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        similarities = similarities / temperature
        if identities is None:
            return similarities
        equal = (identities[:, own, None] == identities[:, None, :]).any(0)
        equal[torch.arange(len(own), device=own.device), own] = False
        return similarities.masked_fill(F.pad(equal, (0, similarities.shape[1] - equal.shape[1])), -math.inf)

    return _contrast_both_ways(source, target, negatives, normalize, logits)


def additive_margin_loss(
    source: torch.Tensor,
    target: torch.Tensor,
    negatives: torch.Tensor | None = None,
    *,
    margin: float = 0.3,
    scale: float = 1.0,
    normalize: bool = False,
) -> torch.Tensor:
    r"""In-batch retrieval of translations with an additive margin in both directions, section 4.2 of CMLM.

    ```math
    L_{br}^s = -\frac{1}{B} \sum_i \log
    \frac{e^{\phi(s_i, t_i) - m}}{e^{\phi(s_i, t_i) - m} + \sum_{j \neq i} e^{\phi(s_i, t_j)}}
    ```

    and `L_{br} = L_{br}^s + L_{br}^t`, with the source sentences in the denominator of the second. The paper prints
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

    Examples:
        >>> eye = torch.eye(2)
        >>> additive_margin_loss(eye, eye)  # 2 * log(1 + exp(0 - 0.7))
        tensor(0.8064)
    """
    check_shapes(source=source, target=target)

    def logits(similarities: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        return scale * (similarities - margin * F.one_hot(own, similarities.shape[1]).to(similarities.dtype))

    return _contrast_both_ways(source, target, negatives, normalize, logits)


def sentence_contrast_loss(
    source: torch.Tensor,
    target: torch.Tensor,
    negatives: torch.Tensor | None = None,
    *,
    temperature: float = 1.0,
    hardness: float = 0.0,
) -> torch.Tensor:
    r"""Contrast of each sentence and its translation with all others in both languages, equations 2 to 4 of HICTL.

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
    translation. Here no gradient flows through `λ`. A vector of zeros is orthogonal to all. A sentence that is twice in
    the batch is a negative of itself, as in the paper.

    Args:
        source: `x`, `(batch, width)`; with several processes gathered by `gather_with_gradient`.
        target: `y`, the translations, `(batch, width)`.
        negatives: Hard negatives in either language, `(negatives, width)`: further candidates of all `x_i` and `y_i`.
        temperature: Divides the cosines.
        hardness: Exponent `h`, from 0 (negatives as they are) to 1.

    Examples:
        >>> eye = torch.eye(2)
        >>> sentence_contrast_loss(eye, eye)  # 2 * -log(e / (e + 2))
        tensor(1.1029)
    """
    check_shapes(source=source, target=target)
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
    require_choice("reduction", reduction, SIMILARITY_REDUCTIONS)
    source, target = _precise(source, target, normalize=normalize)

    def loss(rows: torch.Tensor, translations: torch.Tensor) -> torch.Tensor:
        ours, theirs = rows @ source.T / temperature, translations @ target.T / temperature
        difference = F.softmax(ours, 1) - F.softmax(theirs, 1)
        return -torch.log(torch.cos(math.pi / 2 * difference.clamp(-1 + epsilon, 1 - epsilon))).sum()

    with torch.autocast(source.device.type, enabled=False):
        total = sum_over_blocks(loss, source, target, columns=len(source)) + 0.0
        return total / len(source) if reduction == "batchmean" else total


def teacher_loss(student: torch.Tensor, teacher: torch.Tensor, *, kind: str = "cosine") -> torch.Tensor:
    r"""Distance of each student embedding from the teacher's (Reimers and Gurevych, 2020).

    ```math
    L_{cos} = \frac{1}{n} \sum_j 1 - \cos(u_j, t_j) \qquad
    L_{mse} = \frac{1}{n d} \sum_j \lVert u_j - t_j \rVert^2
    ```

    A translation learns from the teacher's embedding of its source, as in the paper. `student` is `u`, and `teacher`,
    without gradient, `t`: `(rows, width)` each. `kind` is `cosine`, or `mse` (the paper).

    Examples:
        >>> eye = torch.eye(2)
        >>> teacher_loss(3 * eye, eye), teacher_loss(3 * eye, eye, kind="mse")
        (tensor(0.), tensor(2.))
    """
    require_choice("kind", kind, TEACHER_LOSSES)
    student, teacher = _precise(student, teacher)
    if kind == "mse":
        return F.mse_loss(student, teacher)
    return 1.0 - F.cosine_similarity(student, teacher, dim=-1).mean()


def matching_loss(
    source: torch.Tensor, target: torch.Tensor, teacher: torch.Tensor, *, temperature: float = 0.05
) -> torch.Tensor:
    r"""Divergence of the student's similarities in a batch from the teacher's.

    ```math
    L_{match} = \frac{1}{n} \sum_j \mathrm{KL}\left(\mathrm{softmax}_k \frac{\cos(t_j, t_k)}{\tau} \,\Big\|\,
    \mathrm{softmax}_k \frac{\cos(u_j, v_k)}{\tau}\right)
    ```

    Sentences that the teacher holds close are not pushed apart as far as others. The widths of student and teacher may
    differ.

    Args:
        source: `u`, `(batch, width)`.
        target: `v`, their translations, `(batch, width)`.
        teacher: `t`, the teacher's embeddings of the sources, `(batch, teacher_width)`, without gradient.
        temperature: Divides the cosines of both.

    Examples:
        >>> vectors = torch.randn(4, 8)
        >>> bool(matching_loss(vectors, vectors, vectors).abs() < 1e-5)
        True
    """
    source, target, teacher = _precise(source, target, teacher, normalize=True)

    def divergence(rows: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
        expected = F.log_softmax(taught @ teacher.T / temperature, dim=-1)
        found = F.log_softmax(rows @ target.T / temperature, dim=-1)
        return F.kl_div(found, expected, reduction="sum", log_target=True)

    with torch.autocast(source.device.type, enabled=False):
        return sum_over_blocks(divergence, source, teacher, columns=len(source)) / len(source)
