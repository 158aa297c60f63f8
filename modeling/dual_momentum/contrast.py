"""Parts of momentum contrast for our trainer and that of sentence-transformers: queues, loss, momentum, skipped steps."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize
from transformers import TrainerCallback
from transformers import initialization as init

from hf_xlsr.losses.combination import matryoshka_mean
from hf_xlsr.losses.queue_info_nce import QuantizedRows, matching_pairs, quantize_rows, queue_info_nce, truncate_rows
from hf_xlsr.utils.distributed import gather_rows, process_index
from hf_xlsr.utils.errors import XlsrError

from .configuration_dual_momentum import DualMomentumConfig

logger = logging.getLogger(__name__)

NO_TEXT = -1  # example number of empty rows


class MemoryQueue(nn.Module):
    """A ring of keys. It consists of buffers, so that checkpoints contain it and a resume is exact.

    Valid rows come first, since the ring is filled from its start. `texts` are hashes of the keys' texts, `examples` the
    numbers of their pairs in the training data, `pointer` is the row of the next key.

    Examples:
        >>> queue = MemoryQueue(4, 2)
        >>> queue.enqueue(torch.eye(2), torch.tensor([7, 8]), torch.tensor([0, 1]))
        >>> queue.count, queue.keys()[1].tolist()
        (2, [0.0, 1.0])
    """

    values: torch.Tensor
    scales: torch.Tensor | None
    texts: torch.Tensor
    examples: torch.Tensor
    pointer: torch.Tensor
    filled: torch.Tensor

    def __init__(self, size: int, width: int, storage: str = "float32") -> None:
        super().__init__()
        self.size = size
        self.register_buffer("values", torch.zeros(size, width, dtype=getattr(torch, storage)))
        self.register_buffer("scales", torch.zeros(size, dtype=torch.float32) if storage == "int8" else None)
        self.register_buffer("texts", torch.zeros(size, dtype=torch.long))
        self.register_buffer("examples", torch.full((size,), NO_TEXT))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    @property
    def count(self) -> int:
        return int(self.filled)

    def keys(self) -> torch.Tensor | QuantizedRows:
        """The valid rows, as input of `queue_info_nce`; a view, not a copy."""
        count = self.count
        if self.scales is not None:
            return QuantizedRows(self.values[:count], self.scales[:count])
        return self.values[:count]

    @torch.no_grad()
    def enqueue(self, keys: torch.Tensor, texts: torch.Tensor, examples: torch.Tensor) -> None:
        """Writes keys over the oldest rows, the newest last."""
        count = len(keys)
        if count > self.size:
            raise XlsrError(f"`queue_size` must be at least the {count:,} keys of a step, got {self.size:,}.")
        rows = (self.pointer + torch.arange(count, device=keys.device)) % self.size
        if self.scales is not None:
            quantized = quantize_rows(keys)
            self.values[rows], self.scales[rows] = quantized.values, quantized.scales.to(self.scales.dtype)
        else:
            self.values[rows] = keys.to(self.values.dtype)
        self.texts[rows], self.examples[rows] = texts, examples
        self.pointer.copy_((self.pointer + count) % self.size)
        self.filled.copy_((self.filled + count).clamp(max=self.size))

    @torch.no_grad()
    def initialize(self) -> None:
        """Empties the queue. `from_pretrained` makes buffers without values."""
        for name, buffer in self.named_buffers():
            init.constant_(buffer, NO_TEXT if name == "examples" else 0)

    def clear(self) -> None:
        self.pointer.zero_()
        self.filled.zero_()


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


@dataclass
class StepKeys:
    """Keys of the current optimiser step, and whether the step is dropped, since its gradient was not finite.

    `waiting` has `(language, keys, texts, examples)` of each micro-batch and side, of this process only.
    """

    waiting: list[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    dropped: bool = False
    dropped_steps: int = 0


class StepCallback(TrainerCallback):
    """A callback that knows the keys of the current step."""

    def __init__(self, keys: StepKeys) -> None:
        self.keys = keys


class SoundStepCallback(StepCallback):
    """Drops a step whose gradient is not finite: no update, no momentum, no keys. It logs the step and continues.

    Under float16 the gradient scaler drops the update and lowers its scale, which is normal at the start and logged as
    information. The scaler's own `step_was_skipped` is wrong for fused optimisers.
    """

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.keys.waiting, self.keys.dropped = [], False

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **kwargs: Any
    ) -> None:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        if not gradients:
            return
        norm = torch.nn.utils.get_total_norm(gradients)
        # Gradients are averaged already, so all processes agree.
        if not torch.isfinite(norm):
            self.keys.dropped = True
            self.keys.dropped_steps += 1
            scaled = getattr(optimizer, "scaler", None) is not None
            if not scaled:
                model.zero_grad(set_to_none=True)  # optimisers ignore weights without gradient
            logger.log(
                logging.INFO if scaled else logging.WARNING,
                "Skipped step %d: its gradient is not finite (%s). Skipped so far: %d. Lower the learning rate if this "
                "happens often.",
                state.global_step + 1,
                float(norm),
                self.keys.dropped_steps,
            )
