"""Chunks of sentences of similar length, for batches that mix short and long ones."""

from __future__ import annotations

from typing import NamedTuple

import torch

from hf_xlsr.losses.gradient_cache import encode_in_chunks
from hf_xlsr.modeling.negatives import Encode

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


def length_chunks(attention_mask: torch.Tensor, size: int | None = None) -> list[LengthChunk]:
    """Splits a batch by length, to encode its short sentences without the padding of the long ones.

    Balanced batches mix languages and tasks, whose sentences differ in length. By default there are at most four chunks
    of at least 32 rows each. Their number depends on the number of rows alone, so that all processes call the
    encoder equally often.

    Args:
        attention_mask: 0 for padding, `(batch, length)`.
        size: Rows of a chunk.

    Examples:
        >>> mask = torch.ones(64, 9)
        >>> mask[::2, 3:] = 0
        >>> [(len(rows), length) for rows, length in length_chunks(mask)]
        [(32, 3), (32, 9)]
    """
    places = torch.arange(1, attention_mask.shape[1] + 1, device=attention_mask.device)
    lengths = (attention_mask * places).amax(dim=1)  # up to the last token
    order = lengths.argsort(stable=True)
    size = size or max(LEAST_ROWS, -(-len(order) // MOST))
    if len(order) <= size:
        order = torch.arange(len(order), device=order.device)
    chunks = order.split(size)
    step = 8 if attention_mask.is_cuda else 1  # for tensor cores
    longest = torch.stack([lengths[rows].max() for rows in chunks]).tolist()  # one synchronisation
    return [LengthChunk(rows, -(-int(length) // step) * step) for rows, length in zip(chunks, longest, strict=True)]


def without_padding(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tokens and mask, `(batch, length)`, without the padding that all rows have.

    Examples:
        >>> ids, mask = torch.ones(2, 9), torch.tensor([[1] * 3 + [0] * 6, [1] * 5 + [0] * 4])
        >>> without_padding(ids, mask)[0].shape
        torch.Size([2, 5])
    """
    (whole,) = length_chunks(attention_mask, len(attention_mask))
    return whole(input_ids, attention_mask)


def in_order(parts: list[torch.Tensor], chunks: list[LengthChunk]) -> torch.Tensor:
    """The rows of all chunks in the order of the batch.

    Args:
        parts: Of each chunk, `(rows, ...)`.
        chunks: From `length_chunks`.
    """
    return torch.cat(parts)[torch.cat([chunk.rows for chunk in chunks]).argsort()]


def encode_by_length(encode: Encode, cache_batch_size: int | None) -> Encode:
    """A function that encodes sentences in chunks of similar length, with the gradient cache if its size is given.

    Args:
        encode: Embeddings of `input_ids` and `attention_mask`.
        cache_batch_size: Sentences of a chunk, see `encode_in_chunks`; None keeps all graphs of a few large chunks.
    """
    cached = encode_in_chunks(encode, cache_batch_size)

    def encode_chunks(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        chunks = length_chunks(mask, cache_batch_size)
        return in_order([cached(*chunk(input_ids, mask)) for chunk in chunks], chunks)

    return encode_chunks
