"""Which of the weights in a folder a dual momentum model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hf_xlsr.utils.errors import XlsrError

from .configuration_dual_momentum import DualMomentumConfig


def fitting_weights(
    own: Mapping[str, torch.Tensor], queues: Sequence[str], tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Those of another model to start from: no queue of another size or storage, and copies for momentum encoders.

    Args:
        own: The state of the model that starts.
        queues: Its languages that have a queue.
        tensors: Of the other model, under names that this one knows.

    Returns:
        A queue whole or not at all; encoders and projections also as momentum ones, where those are lacking.
    """
    chosen = dict(tensors)
    for language in queues:
        names = [name for name in own if name.startswith(f"queues.{language}.")]
        if any(name not in tensors or _kind(tensors[name]) != _kind(own[name]) for name in names):
            chosen = {name: value for name, value in chosen.items() if name not in names}
    for name, value in tensors.items():
        momentum_name = f"momentum_{name}"  # of encoders and projections
        if momentum_name in own:
            chosen.setdefault(momentum_name, value)
    return chosen


def _kind(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def check_same(path: str, asked: Any) -> None:
    """Tells which setting of the folder's tensors is not the one asked for, by a configuration or by options."""
    stored = DualMomentumConfig.from_pretrained(path)
    for name in ("queue_size", "queue_storage", "projection_dim"):
        there = getattr(stored, name)
        here = asked.get(name, there) if isinstance(asked, Mapping) else getattr(asked, name)
        if there != here:
            raise XlsrError(
                f"'{path}' was saved with {name} {there} but {here} is asked for; keep {there}, or start a new run from "
                "its encoders (DualMomentumModel.from_encoders)."
            )
