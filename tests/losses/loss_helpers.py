"""Gradients of a loss and a watch over its memory, shared by tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """Records the most elements of any tensor that an operation makes; views of inputs make none."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().data_ptr() not in known:
                self.numel = max(self.numel, leaf.numel())
        return result


def value_and_gradients(
    loss: Callable[..., torch.Tensor], inputs: list[torch.Tensor], *args: Any, **options: Any
) -> list[Any]:
    """The value of a loss, then its gradient for each of `inputs`."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    value = loss(*leaves, *args, **options)
    value.backward()
    return [value.detach(), *(leaf.grad for leaf in leaves)]
