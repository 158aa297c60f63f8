"""CMLM: conditional masked language modelling."""

from __future__ import annotations

from .configuration_cmlm import CmlmConfig
from .modeling_cmlm import CmlmModel, CmlmOutput
from .projections import SentenceProjections

__all__ = ["CmlmConfig", "CmlmModel", "CmlmOutput", "SentenceProjections"]
