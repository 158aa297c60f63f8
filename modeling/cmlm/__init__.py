"""CMLM: conditional masked language modelling."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel

from .configuration_cmlm import CmlmConfig
from .modeling_cmlm import CmlmModel

__all__ = ["CmlmConfig", "CmlmModel"]

AutoConfig.register(CmlmConfig.model_type, CmlmConfig, exist_ok=True)
AutoModel.register(CmlmConfig, CmlmModel, exist_ok=True)
