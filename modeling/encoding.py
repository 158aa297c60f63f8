"""Encoding the sentences of a batch: in chunks of similar length, and with hard negatives of all processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from hf_xlsr.losses.combination import encode_in_chunks
from hf_xlsr.utils.distributed import gather_ragged, gather_rows, world_size

Encode = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
MAX_CHUNKS = 4
MIN_CHUNK_ROWS = 32


def full_mask(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """The attention mask, by default all ones."""
    if attention_mask is None:
        return torch.ones_like(input_ids)
    return attention_mask


class LengthChunk(NamedTuple):
    """The numbers of some rows of a batch, `(rows,)`, and the tokens of the longest."""

    rows: torch.Tensor
    length: int

    def __call__(self, *batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The chunk of `(batch, length)` tensors, without the padding that all its rows have."""
        return tuple(tensor[self.rows, : self.length] for tensor in batch)


def length_chunks(attention_mask: torch.Tensor, size: int | None = None) -> list[LengthChunk]:
    """Splits a batch by length, to encode its short sentences without the padding of the long ones.

    By default there are at most four chunks of at least 32 rows each. Their number depends on the number of rows alone,
    so that all processes call the encoder equally often.
    """
    batch_size, width = attention_mask.shape
    positions = torch.arange(1, width + 1, device=attention_mask.device)
    lengths = (attention_mask * positions).amax(dim=1)  # up to the last token

    size = size or max(MIN_CHUNK_ROWS, -(-batch_size // MAX_CHUNKS))
    order = lengths.argsort(stable=True)
    if batch_size <= size:
        order = torch.arange(batch_size, device=lengths.device)

    chunks = order.split(size)
    longest = torch.stack([lengths[rows].max() for rows in chunks]).tolist()  # one synchronisation
    multiple = 8 if attention_mask.is_cuda else 1  # for tensor cores
    return [
        LengthChunk(rows, -(-int(length) // multiple) * multiple) for rows, length in zip(chunks, longest, strict=True)
    ]


def without_padding(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tokens and mask, `(batch, length)`, without the padding that all rows have."""
    (whole_batch,) = length_chunks(attention_mask, len(attention_mask))
    return whole_batch(input_ids, attention_mask)


def in_order(rows_of_chunks: Sequence[torch.Tensor], chunks: list[LengthChunk]) -> torch.Tensor:
    """The rows of all chunks in the order of the batch."""
    row_numbers = torch.cat([chunk.rows for chunk in chunks])
    return torch.cat(list(rows_of_chunks))[row_numbers.argsort()]


def encode_by_length(encode: Encode, cache_batch_size: int | None) -> Encode:
    """A function that encodes sentences in chunks of similar length; with a size, by `encode_in_chunks`."""
    cached = encode_in_chunks(encode, cache_batch_size)

    def encode_chunks(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        mask = full_mask(input_ids, attention_mask)
        chunks = length_chunks(mask, cache_batch_size)
        return in_order([cached(*chunk(input_ids, mask)) for chunk in chunks], chunks)

    return encode_chunks


def encode_negatives(
    encode: Encode,
    sentences: tuple[torch.Tensor, torch.Tensor | None],
    negative_ids: torch.Tensor | None,
    negative_mask: torch.Tensor | None,
) -> torch.Tensor | None:
    """Embeddings of the hard negatives of all processes, `(negatives, width)`; None if no process has any.

    `sentences` are the `input_ids` and the `attention_mask` of the batch. A process without negatives encodes one of
    them, since all processes must call the encoder equally often.
    """
    input_ids, attention_mask = sentences
    count = 0 if negative_ids is None else len(negative_ids)
    total = count
    if world_size() > 1:
        total = int(gather_rows(torch.tensor([count], device=input_ids.device)).sum())
    if total == 0:
        return None

    if negative_ids is not None and count:
        return gather_ragged(encode(negative_ids, negative_mask))
    first_mask = full_mask(input_ids, attention_mask)[:1]
    return gather_ragged(encode(input_ids[:1], first_mask)[:0])
