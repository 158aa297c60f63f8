"""Devices by name."""

from __future__ import annotations

import torch

from hf_xlsr.utils.errors import XlsrError, error_line


def resolve_device(device: str) -> torch.device:
    """The device of a name such as `cpu` or `cuda:1`; an error if torch cannot allocate on it."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = error_line(str(error).partition("\n")[0], 100).rstrip(".")
        raise XlsrError(f"`device` must be available, got '{device}' ({reason}). Use cpu or the default.") from error
    return torch.device(device)
