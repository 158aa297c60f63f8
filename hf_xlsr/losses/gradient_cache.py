"""Gradient cache: a large contrastive batch in the memory of a small one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


def encode_in_chunks(encode: Callable[..., Any], cache_batch_size: int | None) -> Callable[..., Any]:
    """A function that encodes rows in chunks and keeps only their embeddings (Gao et al., 2021).

    The backward pass computes each chunk again, one at a time, with the random state and the autocast of its first pass.
    The gradient equals that of the same chunks with their graphs kept.

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
        found = [checkpoint(encode, *chunk, use_reentrant=False) for chunk in chunks]
        if isinstance(found[0], tuple):
            return tuple(map(torch.cat, zip(*found, strict=True)))
        return torch.cat(found)

    return encode_chunks
