"""Chunks of sentences of similar length, for batches that mix short and long ones."""

from __future__ import annotations

from typing import NamedTuple

import torch

MOST = 4
LEAST_ROWS = 32


class LengthChunk(NamedTuple):
    """Rows of a batch, and their length.

    Attributes:
        rows: Their numbers, `(n,)`.
        length: Tokens of the longest.
    """

    rows: torch.Tensor
    length: int

    def __call__(self, *batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The chunk of `(batch, length)` tensors, without the padding that all its rows have."""
        return tuple(part[self.rows, : self.length] for part in batch)


def length_chunks(attention_mask: torch.Tensor) -> list[LengthChunk]:
    """Splits a batch by length, to encode its short sentences without the padding of the long ones.

    Balanced batches mix languages and tasks, whose sentences differ in length. There are at most four chunks of at least
    32 rows each. The number of chunks depends on the number of rows alone, so that all processes call the encoder equally
    often.

    Args:
        attention_mask: 0 for padding, `(batch, length)`.

    Examples:
        >>> mask = torch.ones(64, 9)
        >>> mask[::2, 3:] = 0
        >>> [(len(rows), length) for rows, length in length_chunks(mask)]
        [(32, 3), (32, 9)]
    """
    places = torch.arange(1, attention_mask.shape[1] + 1, device=attention_mask.device)
    lengths = (attention_mask * places).amax(dim=1)  # up to the last token
    order = lengths.argsort(stable=True)
    if len(order) <= LEAST_ROWS:
        order = torch.arange(len(order), device=order.device)
    chunks = order.split(max(LEAST_ROWS, -(-len(order) // MOST)))
    step = 8 if attention_mask.is_cuda else 1  # for tensor cores
    longest = torch.stack([lengths[rows].max() for rows in chunks]).tolist()  # one synchronisation
    return [LengthChunk(rows, -(-int(length) // step) * step) for rows, length in zip(chunks, longest, strict=True)]


def in_order(parts: list[torch.Tensor], chunks: list[LengthChunk]) -> torch.Tensor:
    """The rows of all chunks in the order of the batch.

    Args:
        parts: Of each chunk, `(rows, ...)`.
        chunks: From `length_chunks`.
    """
    return torch.cat(parts)[torch.cat([chunk.rows for chunk in chunks]).argsort()]
