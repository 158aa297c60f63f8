"""Parts of momentum contrast for our trainer and that of sentence-transformers: the loss and the momentum update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize

from hf_xlsr.losses.combination import matryoshka_mean
from hf_xlsr.losses.queue_info_nce import matching_pairs, queue_info_nce, truncate_rows
from hf_xlsr.modeling.memory_queue import MemoryQueue
from hf_xlsr.utils.distributed import gather_rows, process_index
from hf_xlsr.utils.errors import XlsrError

from .configuration_dual_momentum import DualMomentumConfig


def direction_loss(
    config: DualMomentumConfig,
    queries: torch.Tensor,
    keys: torch.Tensor,
    queue: MemoryQueue | None = None,
    texts: torch.Tensor | None = None,
    examples: torch.Tensor | None = None,
    negatives: torch.Tensor | None = None,
    negative_texts: torch.Tensor | None = None,
    *,
    matryoshka_dims: Sequence[int] | None = None,
    gather: bool = True,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Equation 2 over a batch: queries of one language, keys of the other, its queue as negatives.

    All vectors have length 1; `keys` and `negatives` have no gradient. Masks and their statistics need `texts`, hashes of
    the keys' texts, and `examples`, numbers of the pairs. With `texts`, one of the hard negatives of all processes
    that is a query's own translation does not count, as its hash in `negative_texts` tells. `gather` takes in-batch
    negatives from all processes. Returns the mean loss, and the statistics of `DualMomentumOutput`.
    """
    statistics: dict[str, torch.Tensor] = {}
    rows = columns = torch.empty(0, dtype=torch.long, device=queries.device)
    bank: Any = queries.new_empty(0, queries.shape[1])
    queue_texts = queue_examples = rows
    if queue is not None:
        bank, count = queue.keys(), queue.count
        queue_texts, queue_examples = queue.texts[:count], queue.examples[:count]
        statistics["queue/filled"] = queries.new_tensor(count / queue.size)
    others, own_column = None, None
    if config.in_batch_negatives:
        others = gather_rows(keys) if gather else keys
        first = len(bank) + (process_index() * len(keys) if gather else 0)
        own_column = first + torch.arange(len(keys), device=keys.device)
    if texts is not None and examples is not None:
        if others is not None:
            queue_texts = torch.cat([queue_texts, gather_rows(texts) if gather else texts])
            queue_examples = torch.cat([queue_examples, gather_rows(examples) if gather else examples])
        rows, columns = matching_pairs(texts, queue_texts)
        own = examples[rows] == queue_examples[columns]
        for name, chosen in (("queue/stale", own), ("queue/duplicates", ~own)):
            in_queue = rows[chosen & (columns < len(bank))]
            statistics[name] = queries.new_tensor(in_queue.unique().numel() / len(queries))
        kept = (own & config.mask_stale_keys) | (~own & config.mask_duplicates)
        rows, columns = rows[kept], columns[kept]
    elif config.mask_stale_keys or config.mask_duplicates:
        raise XlsrError("mask_stale_keys and mask_duplicates need `texts` and `examples`; use DualCollator.")
    if own_column is not None:
        rows = torch.cat([rows, torch.arange(len(queries), device=rows.device)])
        columns = torch.cat([columns, own_column])
    if negatives is not None:
        if texts is not None and negative_texts is not None:
            same, which = matching_pairs(texts, negative_texts)
            first = len(bank) + (0 if others is None else len(others))
            rows, columns = torch.cat([rows, same]), torch.cat([columns, first + which])
        others = negatives if others is None else torch.cat([others, negatives])

    def info_nce(queries: torch.Tensor, keys: torch.Tensor, others: torch.Tensor | None) -> torch.Tensor:
        queue_rows = bank
        if matryoshka_dims:
            queue_rows = truncate_rows(bank, queries.shape[1])
            queries, keys = normalize(queries, dim=-1), normalize(keys, dim=-1)
            others = None if others is None else normalize(others, dim=-1)
        masked = (rows, columns) if len(rows) else None
        return queue_info_nce(
            queries, keys, queue_rows, temperature=config.temperature, other_keys=others, masked=masked
        )

    return matryoshka_mean(info_nce, matryoshka_dims, queries, keys, others), statistics


def momentum_pairs(base: nn.Module, average: nn.Module) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
    """Pairs of a trained parameter and its momentum counterpart, matched by name."""
    counterparts = dict(average.named_parameters())
    for name, parameter in base.named_parameters():
        if not parameter.requires_grad:
            continue
        if name not in counterparts:
            raise XlsrError(
                f"Trained parameter '{name}' has no momentum counterpart. Add adapters to the momentum encoders too, as "
                "hf_xlsr.trainers.adapters.add_adapters does; in sentence-transformers, add them before making the loss."
            )
        yield parameter, counterparts[name]


@torch.no_grad()
def update_averages(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], momentum: float) -> None:
    """Equation 1 in place: `momentum * average + (1 - momentum) * base` for each pair of base and average."""
    pairs = list(pairs)
    if pairs:
        averages = [average for _, average in pairs]
        torch._foreach_lerp_(averages, [base.detach().to(average) for base, average in pairs], 1 - momentum)
