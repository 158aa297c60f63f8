"""Weighted sums of named loss parts, equation 7 of the lightweight dual transformer."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hf_xlsr.utils.errors import XlsrError


def weighted_sum(parts: Mapping[str, torch.Tensor], weights: Mapping[str, float]) -> torch.Tensor:
    r"""Equation 7: `L = \omega_0 L_{XMLM} + \omega_1 L_{align} + \omega_2 L_{sim}`.

    Args:
        parts: The losses by name.
        weights: A factor for each of them.

    Returns:
        A scalar.

    Raises:
        XlsrError: all weights are 0.

    Examples:
        >>> parts = {"generative": torch.tensor(3.0), "alignment": torch.tensor(0.5)}
        >>> weighted_sum(parts, {"generative": 1.0, "alignment": 2.0})
        tensor(4.)
    """
    if not parts:
        raise XlsrError("No loss to train: at least one weight must be above 0.")
    return torch.stack([weights[name] * value for name, value in parts.items()]).sum()
