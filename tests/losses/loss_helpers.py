"""Gradients of a loss, watches over its operations, and the naive twin of contrast with a queue."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Pairs = tuple[torch.Tensor, torch.Tensor]


def tensors_of(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


class Largest(TorchDispatchMode):
    """Records the most elements of any tensor that an operation makes; views of inputs make none."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {tensor.untyped_storage().data_ptr() for tensor in tensors_of(args)}
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_of(result):
            if tensor.untyped_storage().data_ptr() not in inputs:
                self.numel = max(self.numel, tensor.numel())
        return result


def value_and_gradients(
    loss: Callable[..., torch.Tensor], inputs: list[torch.Tensor], *args: Any, **options: Any
) -> list[Any]:
    """The value of a loss, then its gradient for each of `inputs`."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    value = loss(*leaves, *args, **options)
    value.backward()
    return [value.detach(), *(leaf.grad for leaf in leaves)]


def unit_rows(count: int, width: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, width, generator=generator, dtype=torch.float64), dim=1).to(dtype)


def naive_info_nce(
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
        mask = torch.zeros_like(negatives)
        mask[masked] = -math.inf
        negatives = negatives + mask
    logits = torch.cat([(queries * keys).sum(1, keepdim=True), negatives], 1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(queries), dtype=torch.long))


@contextmanager
def watched() -> Iterator[list[tuple[str, int, str]]]:
    """The operations that run: name, size of the largest output, precision of the processor's products."""
    operations: list[tuple[str, int, str]] = []
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            largest = max((tensor.numel() for tensor in tensors_of(result)), default=0)
            operations.append((str(function), largest, matmul.fp32_precision))
            return result

    with Watch():
        yield operations
