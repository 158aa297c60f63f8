"""A loss of a student against its teacher that forgives outliers."""

from __future__ import annotations

import torch

from hf_xlsr.losses import register_teacher_loss


@register_teacher_loss("huber")
def huber(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Squared where values are near, linear where they are far apart."""
    return torch.nn.functional.huber_loss(student, teacher)
