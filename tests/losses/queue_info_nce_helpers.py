"""The naive twin of contrast with a queue, its vectors and a watch over its operations, shared by tests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Pairs = tuple[torch.Tensor, torch.Tensor]


def unit_rows(count: int, width: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, width, generator=generator, dtype=torch.float64), dim=1).to(dtype)


def naive(
    queries: torch.Tensor,
    keys: torch.Tensor,
    queue: torch.Tensor,
    *,
    temperature: float = 0.04,
    other_keys: torch.Tensor | None = None,
    masked: Pairs | None = None,
) -> torch.Tensor:
    """Cross-entropy on the concatenated bank."""
    bank = queue if other_keys is None else torch.cat([queue.to(queries), other_keys.to(queries)])
    negatives = queries @ bank.to(queries).T
    if masked is not None:
        keep = torch.zeros_like(negatives)
        keep[masked] = -math.inf
        negatives = negatives + keep
    logits = torch.cat([(queries * keys).sum(1, keepdim=True), negatives], 1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(queries), dtype=torch.long))


def value_and_gradients(
    loss: Any, queries: torch.Tensor, keys: torch.Tensor, queue: Any, **options: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    leaves = [tensor.clone().requires_grad_() for tensor in (queries, keys)]
    value = loss(*leaves, queue, **options)
    value.backward()
    assert leaves[0].grad is not None and leaves[1].grad is not None
    return value.detach(), leaves[0].grad, leaves[1].grad


@contextmanager
def watched() -> Iterator[list[tuple[str, int, str]]]:
    """The operations that run: name, size of the largest output, precision of the processor's products."""
    seen: list[tuple[str, int, str]] = []
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
            seen.append((str(function), max(sizes, default=0), matmul.fp32_precision))
            return out

    with Watch():
        yield seen
