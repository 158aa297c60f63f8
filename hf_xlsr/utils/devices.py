"""Devices that users name."""

from __future__ import annotations

import torch

from hf_xlsr.utils.errors import XlsrError, error_line


def known_device(device: str) -> torch.device:
    """The device of a name.

    Args:
        device: For instance `cpu` or `cuda:1`.

    Raises:
        XlsrError: torch cannot use it here.

    Example:
        >>> known_device("cpu")
        device(type='cpu')
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = error_line(str(error).partition("\n")[0], 100).rstrip(".")
        raise XlsrError(
            f"device is '{device}', which torch cannot use here ({reason}); give cpu, or leave it out."
        ) from error
    return torch.device(device)
