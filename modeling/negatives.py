"""Hard negatives of a batch, as all models take them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hf_xlsr.utils.distributed import gather_ragged, gather_rows, world_size

Encode = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


def encode_negatives(
    encode: Encode, batch: tuple[torch.Tensor, torch.Tensor | None], *negatives: torch.Tensor | None
) -> torch.Tensor | None:
    """Embeddings of the hard negatives of all processes, `(negatives, width)`; None if no process has any.

    Args:
        encode: Embeddings of `input_ids` and `attention_mask`.
        batch: `input_ids` and `attention_mask` of other sentences. A process without negatives encodes one of them, since
            all processes must call the encoder equally often.
        *negatives: `input_ids` and `attention_mask` of this process's negatives, or None.
    """
    (input_ids, attention_mask), (other_ids, other_mask) = negatives, batch
    count = 0 if input_ids is None else len(input_ids)
    if world_size() > 1:
        total = int(gather_rows(torch.tensor([count], device=other_ids.device)).sum())
    else:
        total = count
    if not total:
        return None
    if input_ids is not None and count:
        return gather_ragged(encode(input_ids, attention_mask))
    return gather_ragged(encode(other_ids[:1], None if other_mask is None else other_mask[:1])[:0])
