"""Gathering over processes, with and without gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

_apart = False  # inside of `computed_apart`


@contextmanager
def computed_apart() -> Iterator[None]:
    """Lets this process compute as if it were alone: losses see its own rows and no others."""
    global _apart
    before = _apart
    _apart = True
    try:
        yield
    finally:
        _apart = before


def world_size() -> int:
    """Number of processes that compute together; 1 without a process group."""
    if torch.distributed.is_initialized() and not _apart:
        return torch.distributed.get_world_size()
    return 1


def process_index() -> int:
    """The rank of this process; 0 without a process group."""
    if torch.distributed.is_initialized() and not _apart:
        return torch.distributed.get_rank()
    return 0


def own_generator(device: torch.device) -> torch.Generator | None:
    """A random generator for this process only, since Trainer gives all processes the same seed; None without a group.

    Its seed comes from torch's CPU generator, whose state is part of checkpoints.
    """
    if world_size() == 1:
        return None
    seed = int(torch.randint(2**62, ())) + process_index()
    return torch.Generator(device).manual_seed(seed)


def scaled_to_mean(
    mean: torch.Tensor,
    count: torch.Tensor,
    per_batch: torch.Tensor | None = None,
) -> torch.Tensor:
    """Scales the mean of this process so that its average over processes is the mean over all of their elements.

    `per_batch` is the mean number of elements of a micro-batch and process in an optimiser step: the result's average
    over both is then the mean over all elements of the step.
    """
    own_count = count.to(mean.dtype)
    if per_batch is not None:
        return mean * own_count / per_batch
    if world_size() == 1:
        return mean
    total = gather_rows(own_count.unsqueeze(0)).sum().clamp_min(1)
    return mean * own_count * world_size() / total


@torch.no_grad()
def gather_rows(local: torch.Tensor) -> torch.Tensor:
    """Stacks the rows of all processes, `(batch, ...)` on each, in rank order, without gradient."""
    if world_size() == 1:
        return local
    local = local.detach().contiguous()
    gathered = [torch.empty_like(local) for _ in range(world_size())]
    torch.distributed.all_gather(gathered, local)
    return torch.cat(gathered)


class _GatherRows(torch.autograd.Function):
    """Rows of all ranks; backward sums each row's gradient over the ranks for its owner."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor) -> torch.Tensor:
        return gather_rows(local)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:
        summed = grad_outputs[0].clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(summed)
        return summed.chunk(world_size())[process_index()]


def gather_with_gradient(local: torch.Tensor) -> torch.Tensor:
    """Stacks the rows of all processes, `(batch, ...)` on each; gradients flow back to the rank that owns the row.

    If every rank computes the same loss on these rows, DDP's average of the gradients is that of the global batch.
    """
    if world_size() == 1:
        return local
    gathered: torch.Tensor = _GatherRows.apply(local)  # type: ignore[no-untyped-call]
    return gathered


def gather_ragged(local: torch.Tensor) -> torch.Tensor:
    """As `gather_with_gradient`, for ranks with different numbers of rows, possibly none."""
    if world_size() == 1:
        return local
    counts = gather_rows(torch.tensor([len(local)], device=local.device)).tolist()
    longest = max(counts)
    padded = F.pad(local, (0, 0) * (local.dim() - 1) + (0, longest - len(local)))
    gathered = gather_with_gradient(padded).chunk(world_size())
    return torch.cat([rows[:count] for rows, count in zip(gathered, counts, strict=True)])
