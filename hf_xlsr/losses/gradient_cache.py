"""Large contrastive batches in the memory of small ones: the gradient cache, and losses in blocks of rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from hf_xlsr.utils.distributed import world_size

# Similarities in memory at a time: batches of up to 362 pairs are one block.
SIMILARITIES = 2**17


def encode_in_chunks(encode: Callable[..., Any], cache_batch_size: int | None) -> Callable[..., Any]:
    """A function that encodes rows in chunks and keeps only their embeddings (Gao et al., 2021).

    The backward pass computes each chunk again, one at a time, with the random state and the autocast of its first pass.
    The gradient equals that of the same chunks with their graphs kept. Call `backward`, not `torch.autograd.grad`.

    Args:
        encode: Returns an embedding, or a tuple of tensors, of tensors whose first dimension counts rows. Tensors after
            the first may be None.
        cache_batch_size: Rows of a chunk; None encodes all rows at once.

    Examples:
        >>> layer = torch.nn.Linear(2, 3)
        >>> encode_in_chunks(layer, 2)(torch.ones(5, 2)).shape
        torch.Size([5, 3])
    """
    if cache_batch_size is None:
        return encode

    def encode_chunks(*rows: torch.Tensor | None) -> Any:
        splits: list[Any] = [repeat(None) if row is None else row.split(cache_batch_size) for row in rows]
        chunks = zip(*splits, strict=False)  # None repeats without end
        if world_size() > 1:
            found = [checkpoint(encode, *chunk, use_reentrant=False) for chunk in chunks]
        else:
            # Without even the nodes of the graph. DDP would see the gradient of a parameter once for each chunk.
            leaf = torch.empty(0, requires_grad=True)  # or nothing would have a gradient

            def rerun(_: torch.Tensor, *chunk: torch.Tensor | None) -> Any:
                return encode(*chunk)

            found = [checkpoint(rerun, leaf, *chunk, use_reentrant=True) for chunk in chunks]
        if isinstance(found[0], tuple):
            return tuple(map(torch.cat, zip(*found, strict=True)))
        return torch.cat(found)

    return encode_chunks


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
    source: torch.Tensor, candidates: torch.Tensor, logits: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Cross-entropy of each sentence's translation, averaged over sentences; the sum of both directions.

    `candidates` are the translations, then negatives of the first direction. `logits` gets `(rows, columns)` inner
    products and the column of each row's translation.
    """
    truth = torch.arange(len(source), device=source.device)
    if source.shape[0] * candidates.shape[0] <= SIMILARITIES:  # one matrix for both directions
        whole = logits(source @ candidates.T, truth)
        return F.cross_entropy(whole, truth) + F.cross_entropy(whole[:, : len(source)].T, truth)

    def direction(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        def loss(rows: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(logits(rows @ keys.T, own), own, reduction="sum")

        return sum_over_blocks(loss, queries, truth, columns=len(keys))

    return (direction(source, candidates) + direction(candidates[: len(source)], source)) / len(source)
