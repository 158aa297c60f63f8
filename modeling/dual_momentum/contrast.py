"""Parts of momentum contrast for our trainer and that of sentence-transformers: the loss and the momentum update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize

from hf_xlsr.losses.combination import matryoshka_mean
from hf_xlsr.losses.queue_info_nce import Pairs, matching_pairs, queue_info_nce, truncate_rows
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
    in_batch: bool = False,
    gather: bool = True,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Equation 2 over a batch: queries of one language, keys of the other, its queue as negatives.

    Args:
        config: Temperature, masks of negatives, and whether the hard ones are normalised apart.
        queries: Unit vectors, `(batch, width)`; narrower than the keys, which are then truncated, if a loss around this
            one has truncated them.
        keys: Those of the translations, `(batch, width)`, without gradient.
        queue: The queue of the translations' language.
        texts: Hashes of the keys' texts, `(batch,)`; masks and statistics need them and `examples`.
        examples: Numbers or hashes of the pairs, `(batch,)`.
        negatives: Keys of the hard negatives of all processes, `(negatives, width)`, without gradient.
        negative_texts: Hashes of their texts, `(negatives,)`. With `texts`, a query's own translation is no negative.
        matryoshka_dims: Widths of truncated embeddings, see `matryoshka_mean`.
        in_batch: Whether the other keys of the batch are negatives.
        gather: Whether these come from all processes.

    Returns:
        The mean loss, and the statistics that `DualMomentumModel` describes.
    """
    queue_keys: Any = queries.new_empty(0, queries.shape[1]) if queue is None else queue.keys()
    other_keys = keys[:0]
    shares: dict[str, float] = {}
    if queue is not None:
        shares["queue/filled"] = len(queue_keys) / queue.size

    # Queries and negatives that do not count for them, by the negatives' columns: queue, batch.
    masked: list[Pairs] = []
    if texts is not None and examples is not None:
        options = {"in_batch": in_batch, "gather": gather}
        equal_pairs, equal_shares = _equal_texts(config, queue, len(queue_keys), texts, examples, **options)
        masked += equal_pairs
        shares |= equal_shares
    elif config.mask_stale_keys or config.mask_duplicates:
        raise XlsrError("mask_stale_keys and mask_duplicates need `texts` and `examples`; use DualCollator.")

    if in_batch:
        other_keys = gather_rows(keys) if gather else keys
        rank_offset = process_index() * len(keys) if gather else 0
        rows = torch.arange(len(keys), device=keys.device)
        masked.append((rows, len(queue_keys) + rank_offset + rows))

    hard_keys = keys[:0] if negatives is None else negatives
    hard_masked: Pairs | None = None
    if texts is not None and negative_texts is not None:
        hard_masked = matching_pairs(texts, negative_texts)
    contrast = partial(_contrast, config, masked=masked, hard_masked=hard_masked)

    def info_nce(
        queries: torch.Tensor, keys: torch.Tensor, other_keys: torch.Tensor, hard_keys: torch.Tensor
    ) -> torch.Tensor:
        width = queries.shape[1]
        if not matryoshka_dims and keys.shape[1] == width:
            return contrast(queries, keys, queue_keys, other_keys, hard_keys)
        return contrast(
            normalize(queries, dim=-1),
            normalize(keys[:, :width], dim=-1),
            truncate_rows(queue_keys, width),
            normalize(other_keys[:, :width], dim=-1),
            normalize(hard_keys[:, :width], dim=-1),
        )

    loss = matryoshka_mean(info_nce, matryoshka_dims, queries, keys, other_keys, hard_keys)
    return loss, {name: queries.new_tensor(share) for name, share in shares.items()}


def _contrast(
    config: DualMomentumConfig,
    queries: torch.Tensor,
    keys: torch.Tensor,
    queue: Any,
    other_keys: torch.Tensor,
    hard_keys: torch.Tensor,
    *,
    masked: list[Pairs],
    hard_masked: Pairs | None,
) -> torch.Tensor:
    """InfoNCE with queue, batch and hard negatives: in one softmax, or with the hard negatives in a second one."""
    info_nce = partial(queue_info_nce, queries, keys, temperature=config.temperature)
    if config.split_softmax and len(hard_keys):
        in_queue = info_nce(queue, other_keys=other_keys, masked=_joined(masked))
        return in_queue + info_nce(hard_keys, masked=hard_masked)

    if hard_masked is not None:
        rows, columns = hard_masked
        masked = [*masked, (rows, len(queue) + len(other_keys) + columns)]
    return info_nce(queue, other_keys=torch.cat([other_keys, hard_keys]), masked=_joined(masked))


def _equal_texts(
    config: DualMomentumConfig,
    queue: MemoryQueue | None,
    queue_rows: int,
    texts: torch.Tensor,
    examples: torch.Tensor,
    *,
    in_batch: bool,
    gather: bool,
) -> tuple[list[Pairs], dict[str, float]]:
    """Queries and keys, of their pair or with its text, that the configuration masks; shares of such queries.

    A key of the pair is known by its number: a transform may have changed its text.
    """
    key_texts = texts[:0]
    key_examples = examples[:0]
    if queue is not None:
        key_texts = queue.texts[:queue_rows]
        key_examples = queue.examples[:queue_rows]

    if in_batch:
        key_texts = torch.cat([key_texts, gather_rows(texts) if gather else texts])
        key_examples = torch.cat([key_examples, gather_rows(examples) if gather else examples])

    stale_rows, stale_columns = matching_pairs(examples, key_examples)
    stale_queries = stale_rows[stale_columns < queue_rows].unique()

    rows, columns = matching_pairs(texts, key_texts)
    in_queue = columns < queue_rows
    is_duplicate = ~in_queue | (examples[rows] != key_examples[columns])
    duplicate_queries = rows[in_queue & is_duplicate].unique()

    masked: list[Pairs] = []
    if config.mask_stale_keys:
        masked.append((stale_rows, stale_columns))
    if config.mask_duplicates:
        masked.append((rows[is_duplicate], columns[is_duplicate]))

    shares = {
        "queue/stale": stale_queries.numel() / len(texts),
        "queue/duplicates": duplicate_queries.numel() / len(texts),
    }
    return masked, shares


def _joined(masked: list[Pairs]) -> Pairs | None:
    """The rows and columns of all masked pairs; None without any."""
    if not any(len(rows) for rows, _ in masked):
        return None
    rows, columns = zip(*masked, strict=True)
    return torch.cat(rows), torch.cat(columns)


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
    averages = []
    bases = []
    for base, average in pairs:
        averages.append(average)
        bases.append(base.detach().to(average))
    if averages:
        torch._foreach_lerp_(averages, bases, 1 - momentum)
