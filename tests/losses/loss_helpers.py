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


def assert_same_loss(
    loss: Callable[..., torch.Tensor], twin: Callable[..., torch.Tensor], inputs: list[torch.Tensor], **tolerances: Any
) -> None:
    """Two losses have the same value and the same gradients."""
    results = value_and_gradients(loss, inputs)
    expected = value_and_gradients(twin, inputs)
    torch.testing.assert_close(results, expected, **tolerances)


def random_tensors(*shapes: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Normal numbers, the same for every `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def unit_rows(count: int, width: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    (rows,) = random_tensors((count, width), seed=seed)
    return F.normalize(rows, dim=1).to(dtype)


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
    bank = queue.to(queries)
    if other_keys is not None:
        bank = torch.cat([bank, other_keys.to(queries)])
    negatives = queries @ bank.T
    if masked is not None:
        mask = torch.zeros_like(negatives)
        mask[masked] = -math.inf
        negatives = negatives + mask

    positives = (queries * keys).sum(1, keepdim=True)
    logits = torch.cat([positives, negatives], 1) / temperature
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
