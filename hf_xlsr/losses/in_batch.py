"""What the losses of a batch share: rows in the precision of sums, and similarities in blocks of rows.

Each of these losses is a scalar, computed in float32 (float64 for float64 input), also under autocast.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from hf_xlsr.losses.cross_entropy import accumulation_dtype
from hf_xlsr.utils.errors import XlsrError

# Similarities in memory at a time: batches of up to 362 pairs are one block.
SIMILARITIES = 2**17


def row_lengths(vectors: torch.Tensor) -> torch.Tensor:
    """The length of each row, 1 for a row of zeros, for safe division."""
    lengths: torch.Tensor = torch.linalg.vector_norm(vectors, dim=1)
    return lengths.masked_fill(lengths == 0, 1.0)


def unit_rows(vectors: torch.Tensor) -> torch.Tensor:
    """Rows of length 1, in float32 (float64 for float64 input); a row of zeros stays a row of zeros.

    Its gradient is that of an inner product, since the gradient of a direction is unbounded near length 0.
    """
    vectors = vectors.to(accumulation_dtype(vectors))
    return vectors / row_lengths(vectors).unsqueeze(1)


def precise(*embeddings: torch.Tensor, normalize: bool = False) -> list[torch.Tensor]:
    """Embeddings in the precision of sums, that of the first; with `normalize` of length 1."""
    dtype = accumulation_dtype(embeddings[0])
    precise_rows = [rows.to(dtype) for rows in embeddings]
    if normalize:
        return list(map(unit_rows, precise_rows))
    return precise_rows


def check_shapes(**tensors: torch.Tensor) -> None:
    """Checks that tensors have one shape, which broadcasting would hide."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        raise XlsrError(f"Shapes must be equal, got {shapes}.")


def check_temperature(temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise XlsrError(f"`temperature` must be above 0 and finite, got {temperature}.")


def sum_over_blocks(loss: Callable[..., torch.Tensor], *rows: torch.Tensor, columns: int) -> torch.Tensor:
    """Adds up a loss over blocks of rows, whose similarities the backward pass computes again.

    At most `SIMILARITIES` are in memory; `columns` is their number in a row.
    """
    block_size = max(1, SIMILARITIES // columns)
    if len(rows[0]) <= block_size:
        return loss(*rows)

    blocks = zip(*(torch.split(tensor, block_size) for tensor in rows), strict=True)
    losses = [checkpoint(loss, *block, use_reentrant=False) for block in blocks]
    return torch.stack(losses).sum()


def split_cross_entropy(
    logits: torch.Tensor, translations: torch.Tensor, *, batch: int, split_softmax: bool
) -> torch.Tensor:
    r"""Cross-entropy of each row's translation, added up over rows: in one softmax or, split, in two.

    ```math
    L_i = -\log \frac{e^{s_i^+}}{e^{s_i^+} + \sum_j e^{s_{ij}}} - \log \frac{e^{s_i^+}}{e^{s_i^+} + \sum_k e^{h_{ik}}}
    ```

    with the other sentences `j` of the batch in the first softmax and the hard negatives `k` in the second, as the
    split softmax of Omnilingual SONAR (2026). In one softmax the many sentences of the batch take their share of the
    gradient from the few hard negatives.

    Args:
        logits: `(rows, columns)`: the batch, then the hard negatives.
        translations: The column of each row's translation, `(rows,)`.
        batch: Number of columns before the hard negatives.
        split_softmax: Whether these have a softmax of their own.

    Examples:
        >>> logits = torch.tensor([[0.0, 0.0, 0.0]])  # a translation, another sentence, a hard negative
        >>> options = {"translations": torch.tensor([0]), "batch": 2}
        >>> split_cross_entropy(logits, **options, split_softmax=False)  # log 3
        tensor(1.0986)
        >>> split_cross_entropy(logits, **options, split_softmax=True)  # log 2, twice
        tensor(1.3863)
    """
    if not split_softmax or logits.shape[1] == batch:
        return F.cross_entropy(logits, translations, reduction="sum")

    positives = logits.gather(1, translations.unsqueeze(1))
    hard_logits = torch.cat([positives, logits[:, batch:]], dim=1)
    first_column = torch.zeros_like(translations)
    in_batch = F.cross_entropy(logits[:, :batch], translations, reduction="sum")
    return in_batch + F.cross_entropy(hard_logits, first_column, reduction="sum")


def contrast_both_ways(
    source: torch.Tensor,
    target: torch.Tensor,
    negatives: torch.Tensor | None,
    normalize: bool,
    logits: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    split_softmax: bool = False,
) -> torch.Tensor:
    """Cross-entropy of each sentence's translation, averaged over sentences; the sum of both directions.

    `logits` gets `(rows, columns)` inner products and the column of each row's translation. `split_softmax` is that of
    `split_cross_entropy`.
    """
    candidates = target if negatives is None else torch.cat([target, negatives])
    source, candidates = precise(source, candidates, normalize=normalize)
    count = len(source)
    translations = torch.arange(count, device=source.device)
    cross_entropy = partial(split_cross_entropy, batch=count, split_softmax=split_softmax)

    def one_way(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        def loss(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
            return cross_entropy(logits(rows @ keys.T, columns), columns)

        return sum_over_blocks(loss, queries, translations, columns=len(keys))

    with torch.autocast(source.device.type, enabled=False):
        if count * len(candidates) <= SIMILARITIES:  # one matrix for both directions
            matrix = logits(source @ candidates.T, translations)
            forward = cross_entropy(matrix, translations) / count
            backward = cross_entropy(matrix[:, :count].T, translations) / count
            return forward + backward

        forward = one_way(source, candidates)
        backward = one_way(candidates[:count], source)
        return (forward + backward) / count
