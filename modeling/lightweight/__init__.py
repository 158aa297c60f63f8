"""The lightweight dual transformer (Mao et al., 2021), and a small encoder that learns from a large one by its losses."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel

from .configuration_lightweight import DistillationConfig, LightweightConfig
from .modeling_lightweight import DistillationModel, LightweightDualTransformer

__all__ = ["DistillationConfig", "DistillationModel", "LightweightConfig", "LightweightDualTransformer"]

for model in (LightweightDualTransformer, DistillationModel):
    AutoConfig.register(model.config_class.model_type, model.config_class, exist_ok=True)
    AutoModel.register(model.config_class, model, exist_ok=True)
