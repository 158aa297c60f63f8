"""Loss parts by name in the log of a training."""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import Trainer


class LoggedLosses(Trainer):
    """`Trainer` that logs each part of the loss, averaged since the last log and over processes."""

    args: Any
    part_sums: dict[str, torch.Tensor]
    part_count = 0

    def _init_training_state(self, max_steps: int, *args: Any, **kwargs: Any) -> Any:
        share = self.args.logging_steps
        if share < 1:  # Trainer would warn on a resume, as the state of a checkpoint has the number
            self.args.logging_steps = math.ceil(max_steps * share)
        try:
            return super()._init_training_state(max_steps, *args, **kwargs)
        finally:
            self.args.logging_steps = share

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        # An earlier training may have stopped between two logs.
        self.part_sums = {}
        self.part_count = 0
        return super()._prepare_for_training(*args, **kwargs)  # type: ignore[no-untyped-call]

    def add_losses(self, outputs: Any) -> None:
        """Adds the loss parts and statistics of a batch to those of the next log."""
        values = {f"loss/{name}": loss for name, loss in outputs.losses.items()}
        values |= outputs.get("statistics") or {}
        for name, value in values.items():
            value = value.detach().float()
            if self.args.logging_nan_inf_filter:  # as Trainer does with the loss itself
                value = torch.where(torch.isfinite(value), value, torch.zeros_like(value))
            self.part_sums[name] = self.part_sums.get(name, 0) + value
        self.part_count += 1

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the loss parts to each training log."""
        if "loss" in logs and self.part_count:
            names = list(self.part_sums)
            means = torch.stack([self.part_sums[name] for name in names]) / self.part_count
            means = self.accelerator.gather(means.unsqueeze(0)).mean(0)
            logs.update(zip(names, means.tolist(), strict=True))
            self.part_sums = {}
            self.part_count = 0
        super().log(logs, start_time)
