"""Dual momentum contrast (MoCo-BERT)."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel

from .configuration_dual_momentum import DualMomentumConfig
from .modeling_dual_momentum import DualMomentumModel

__all__ = ["DualMomentumConfig", "DualMomentumModel"]

AutoConfig.register(DualMomentumConfig.model_type, DualMomentumConfig, exist_ok=True)
AutoModel.register(DualMomentumConfig, DualMomentumModel, exist_ok=True)
