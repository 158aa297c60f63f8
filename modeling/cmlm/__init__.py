"""CMLM: conditional masked language modelling."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel

from .configuration_cmlm import CmlmConfig
from .modeling_cmlm import CmlmModel, CmlmOutput
from .projections import SentenceProjections

__all__ = ["CmlmConfig", "CmlmModel", "CmlmOutput", "SentenceProjections"]

AutoConfig.register(CmlmConfig.model_type, CmlmConfig, exist_ok=True)
AutoModel.register(CmlmConfig, CmlmModel, exist_ok=True)
