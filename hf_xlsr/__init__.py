"""hf-xlsr: cross-lingual sentence encoders as a plugin of the Hugging Face ecosystem.

Importing the package registers its architectures with the Auto classes.
"""

from __future__ import annotations

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from hf_xlsr.errors import XlsrError
from hf_xlsr.modeling.cmlm import CmlmConfig, CmlmModel
from hf_xlsr.modeling.dual_momentum import DualMomentumConfig, DualMomentumModel
from hf_xlsr.modeling.hictl import (
    HictlConfig,
    HictlForConditionalGeneration,
    HictlForPreTraining,
    HictlForSequenceClassification,
)
from hf_xlsr.modeling.lightweight import LightweightConfig, LightweightDualTransformer

__version__ = "0.1.0"

AutoConfig.register(LightweightConfig.model_type, LightweightConfig, exist_ok=True)
AutoModel.register(LightweightConfig, LightweightDualTransformer, exist_ok=True)
AutoConfig.register(DualMomentumConfig.model_type, DualMomentumConfig, exist_ok=True)
AutoModel.register(DualMomentumConfig, DualMomentumModel, exist_ok=True)
AutoConfig.register(CmlmConfig.model_type, CmlmConfig, exist_ok=True)
AutoModel.register(CmlmConfig, CmlmModel, exist_ok=True)
AutoConfig.register(HictlConfig.model_type, HictlConfig, exist_ok=True)
AutoModel.register(HictlConfig, HictlForPreTraining, exist_ok=True)
AutoModelForSeq2SeqLM.register(HictlConfig, HictlForConditionalGeneration, exist_ok=True)
AutoModelForSequenceClassification.register(HictlConfig, HictlForSequenceClassification, exist_ok=True)

__all__ = [
    "CmlmConfig",
    "CmlmModel",
    "DualMomentumConfig",
    "DualMomentumModel",
    "HictlConfig",
    "HictlForConditionalGeneration",
    "HictlForPreTraining",
    "HictlForSequenceClassification",
    "LightweightConfig",
    "LightweightDualTransformer",
    "XlsrError",
    "__version__",
]
