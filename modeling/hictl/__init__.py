"""HICTL: hierarchical contrastive learning."""

from __future__ import annotations

from .configuration_hictl import HictlConfig
from .lm_head import LmHead
from .modeling_hictl import HictlForPreTraining, HictlOutput

__all__ = ["HictlConfig", "HictlForPreTraining", "HictlOutput", "LmHead"]
