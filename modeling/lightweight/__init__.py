"""The lightweight dual transformer (Mao et al., 2021)."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel

from .configuration_lightweight import LightweightConfig
from .modeling_lightweight import LightweightDualTransformer, LightweightOutput

__all__ = ["LightweightConfig", "LightweightDualTransformer", "LightweightOutput"]

AutoConfig.register(LightweightConfig.model_type, LightweightConfig, exist_ok=True)
AutoModel.register(LightweightConfig, LightweightDualTransformer, exist_ok=True)
