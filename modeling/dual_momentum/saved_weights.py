"""Weights of a folder that fit a dual momentum model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hf_xlsr.utils.errors import XlsrError

from .configuration_dual_momentum import DualMomentumConfig


def fitting_weights(
    own: Mapping[str, torch.Tensor], queues: Sequence[str], tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Selects the weights of another model to start training from.

    A queue of another size or storage is dropped as a whole. Encoders and projections also initialise missing momentum
    encoders and projections.

    Args:
        own: State of the model that starts.
        queues: Its languages that have a queue.
        tensors: Weights of the other model that have a name of `own`.
    """
    chosen = dict(tensors)
    for language in queues:
        names = [name for name in own if name.startswith(f"queues.{language}.")]
        if any(name not in tensors or _kind(tensors[name]) != _kind(own[name]) for name in names):
            chosen = {name: value for name, value in chosen.items() if name not in names}
    for name, value in tensors.items():
        momentum_name = f"momentum_{name}"  # for encoders and projections
        if momentum_name in own:
            chosen.setdefault(momentum_name, value)
    return chosen


def _kind(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def check_same(path: str, expected: Any) -> None:
    """Checks that saved queues have the expected size, storage and width.

    Args:
        path: Folder of the saved model.
        expected: A configuration, or options of `from_pretrained`.

    Raises:
        XlsrError: a setting differs: names it.
    """
    stored = DualMomentumConfig.from_pretrained(path)
    for name in ("queue_size", "queue_storage", "projection_dim"):
        saved = getattr(stored, name)
        value = expected.get(name, saved) if isinstance(expected, Mapping) else getattr(expected, name)
        if saved != value:
            raise XlsrError(
                f"`{name}` must be {saved}, as in '{path}', got {value}. To change it, start a new run from the encoders "
                "(DualMomentumModel.from_encoders)."
            )
