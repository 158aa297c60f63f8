"""The lightweight dual transformer (Mao et al., 2021)."""

from __future__ import annotations

from .configuration_lightweight import LightweightConfig
from .modeling_lightweight import LightweightDualTransformer, LightweightOutput

__all__ = ["LightweightConfig", "LightweightDualTransformer", "LightweightOutput"]
