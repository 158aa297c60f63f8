"""Contrast of each sentence and its translation with all others in both languages, equations 2 to 4 of HICTL."""

from __future__ import annotations

import math

import torch

from hf_xlsr.losses.in_batch import check_shapes, check_temperature, split_cross_entropy, sum_over_blocks, unit_rows


def sentence_contrast_loss(
    source: torch.Tensor,
    target: torch.Tensor,
    negatives: torch.Tensor | None = None,
    *,
    temperature: float = 1.0,
    hardness: float = 0.0,
    split_softmax: bool = False,
) -> torch.Tensor:
    r"""Contrast of each sentence and its translation with all others in both languages, equations 2 to 4 of HICTL.

    ```math
    L_S = \frac{1}{n} \sum_i L(x_i) + L(y_i), \quad L(x_i) =
    -\log \frac{\exp s(x_i, y_i)}{\exp s(x_i, y_i) + \sum_{j \neq i} \exp s(x_i, y_j) + \exp s(x_i, x_j)}
    ```

    with `s` the cosine over the temperature, and `L(y_i)` likewise: 2n - 2 negatives for each sentence, also in its own
    language, which `alignment_loss` does not have. The paper has no temperature, which is 1.0; the loss then stays well
    above 0.

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
        split_softmax: Normalise hard negatives apart, see `hf_xlsr.losses.in_batch.split_cross_entropy`.

    Examples:
        >>> eye = torch.eye(2)
        >>> sentence_contrast_loss(eye, eye)  # 2 * -log(e / (e + 2))
        tensor(1.1029)
    """
    check_shapes(source=source, target=target)
    check_temperature(temperature)
    sentences = torch.cat([source, target])
    count = len(sentences)
    vectors = sentences if negatives is None else torch.cat([sentences, negatives])
    candidates = unit_rows(vectors)
    selves = torch.arange(count, device=sentences.device)  # the column of each sentence
    translations = selves.roll(len(source))

    def loss(
        directions: torch.Tensor, rows: torch.Tensor, selves: torch.Tensor, translations: torch.Tensor
    ) -> torch.Tensor:
        logits = directions @ candidates.T  # (rows, 2 * batch + negatives)
        if hardness:
            logits = _interpolated_cosines(logits, rows, vectors, translations, hardness)
        logits = logits / temperature
        every_row = torch.arange(len(selves), device=selves.device)
        logits[every_row, selves] = -math.inf
        return split_cross_entropy(logits, translations, batch=count, split_softmax=split_softmax)

    with torch.autocast(sentences.device.type, enabled=False):
        total = sum_over_blocks(loss, candidates[:count], sentences, selves, translations, columns=len(candidates))
        return 2 * (total / count)


def _interpolated_cosines(
    cosines: torch.Tensor, rows: torch.Tensor, candidates: torch.Tensor, translations: torch.Tensor, hardness: float
) -> torch.Tensor:
    """Cosines of each row and `row + share * (candidate - row)`, from norms and cosines: no vector of a pair is made."""
    rows = rows.to(cosines.dtype)
    candidates = candidates.to(cosines.dtype)
    with torch.no_grad():
        distances = torch.cdist(rows, candidates)
        ratios = distances.gather(1, translations.unsqueeze(1)) / distances
        shares = ratios.nan_to_num(1.0).clamp(max=1.0) ** hardness

    # Lengths of the two summands of the interpolated vector.
    along_row = (1 - shares) * torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    along_candidate = shares * torch.linalg.vector_norm(candidates, dim=1)
    squares = along_row**2 + 2 * along_row * along_candidate * cosines + along_candidate**2
    smallest = torch.finfo(squares.dtype).tiny
    lengths = squares.clamp_min(smallest).sqrt()
    products: torch.Tensor = along_row + along_candidate * cosines
    return products.div(lengths)
