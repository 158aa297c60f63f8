"""HICTL: hierarchical contrastive learning."""

from __future__ import annotations

from .configuration_hictl import HictlConfig
from .modeling_classification import HictlClassifierOutput, HictlForSequenceClassification
from .modeling_generation import HictlForConditionalGeneration, HictlTranslationOutput
from .modeling_hictl import HictlForPreTraining, HictlOutput

__all__ = [
    "HictlClassifierOutput",
    "HictlConfig",
    "HictlForConditionalGeneration",
    "HictlForPreTraining",
    "HictlForSequenceClassification",
    "HictlOutput",
    "HictlTranslationOutput",
]
