"""HICTL: hierarchical contrastive learning."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from .configuration_hictl import HictlConfig
from .modeling_classification import HictlClassifierOutput, HictlForSequenceClassification
from .modeling_generation import HictlForConditionalGeneration, HictlTranslationOutput
from .modeling_hictl import HictlForPreTraining

__all__ = [
    "HictlClassifierOutput",
    "HictlConfig",
    "HictlForConditionalGeneration",
    "HictlForPreTraining",
    "HictlForSequenceClassification",
    "HictlTranslationOutput",
]

AutoConfig.register(HictlConfig.model_type, HictlConfig, exist_ok=True)
AutoModel.register(HictlConfig, HictlForPreTraining, exist_ok=True)
AutoModelForSeq2SeqLM.register(HictlConfig, HictlForConditionalGeneration, exist_ok=True)
AutoModelForSequenceClassification.register(HictlConfig, HictlForSequenceClassification, exist_ok=True)
