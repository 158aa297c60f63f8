"""A small sentence encoder that learns from a large one."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel

from .configuration_distillation import DistillationConfig
from .modeling_distillation import DistillationModel

__all__ = ["DistillationConfig", "DistillationModel"]

AutoConfig.register(DistillationConfig.model_type, DistillationConfig, exist_ok=True)
AutoModel.register(DistillationConfig, DistillationModel, exist_ok=True)
