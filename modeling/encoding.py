"""Encoding the sentences of a batch: in chunks of similar length, and with hard negatives of all processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from hf_xlsr.losses.combination import encode_in_chunks
from hf_xlsr.utils.distributed import gather_ragged, gather_rows, world_size

Encode = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
MOST = 4
LEAST_ROWS = 32


def full_mask(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """The attention mask, by default all ones."""
    return torch.ones_like(input_ids) if attention_mask is None else attention_mask


class LengthChunk(NamedTuple):
    """The numbers of some rows of a batch, `(rows,)`, and the tokens of the longest."""

    rows: torch.Tensor
    length: int

    def __call__(self, *batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The chunk of `(batch, length)` tensors, without the padding that all its rows have."""
        return tuple(part[self.rows, : self.length] for part in batch)


def length_chunks(attention_mask: torch.Tensor, size: int | None = None) -> list[LengthChunk]:
    """Splits a batch by length, to encode its short sentences without the padding of the long ones.

    By default there are at most four chunks of at least 32 rows each. Their number depends on the number of rows alone,
    so that all processes call the encoder equally often.
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
    """Tokens and mask, `(batch, length)`, without the padding that all rows have."""
    (whole,) = length_chunks(attention_mask, len(attention_mask))
    return whole(input_ids, attention_mask)


def in_order(parts: list[torch.Tensor], chunks: list[LengthChunk]) -> torch.Tensor:
    """The rows of all chunks in the order of the batch."""
    return torch.cat(parts)[torch.cat([chunk.rows for chunk in chunks]).argsort()]


def encode_by_length(encode: Encode, cache_batch_size: int | None) -> Encode:
    """A function that encodes sentences in chunks of similar length; with a size, by `encode_in_chunks`."""
    cached = encode_in_chunks(encode, cache_batch_size)

    def encode_chunks(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        mask = full_mask(input_ids, attention_mask)
        chunks = length_chunks(mask, cache_batch_size)
        return in_order([cached(*chunk(input_ids, mask)) for chunk in chunks], chunks)

    return encode_chunks


def encode_negatives(
    encode: Encode, batch: tuple[torch.Tensor, torch.Tensor | None], *negatives: torch.Tensor | None
) -> torch.Tensor | None:
    """Embeddings of the hard negatives of all processes, `(negatives, width)`; None if no process has any.

    `batch` and `negatives` are `input_ids` and `attention_mask`. A process without negatives encodes a sentence of the
    batch, since all processes must call the encoder equally often.
    """
    (input_ids, attention_mask), (other_ids, other_mask) = negatives, batch
    count = 0 if input_ids is None else len(input_ids)
    total = count if world_size() == 1 else int(gather_rows(torch.tensor([count], device=other_ids.device)).sum())
    if not total:
        return None
    if input_ids is not None and count:
        return gather_ragged(encode(input_ids, attention_mask))
    return gather_ragged(encode(other_ids[:1], None if other_mask is None else other_mask[:1])[:0])
