"""Losses of the sentence embeddings of a batch, in blocks of rows.

Each is a scalar, computed in float32 (float64 for float64 input), also under autocast.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from hf_xlsr.losses.cross_entropy import accumulation_dtype
from hf_xlsr.utils.errors import XlsrError

# Similarities in memory at a time: batches of up to 362 pairs are one block.
SIMILARITIES = 2**17


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


def precise(*embeddings: torch.Tensor, normalize: bool = False) -> list[torch.Tensor]:
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


def contrast_both_ways(
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
    source, candidates = precise(source, candidates, normalize=normalize)
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
