"""hf-xlsr: train, evaluate and use cross-lingual sentence encoders inside the Hugging Face ecosystem.

Public names are imported on first use. `AutoConfig` and `AutoModel` know the architectures as soon as this package is
imported.
"""

from __future__ import annotations

from importlib.metadata import version

from hf_xlsr.trainers import __all__ as trainer_names
from hf_xlsr.utils.auto_classes import register_architectures
from hf_xlsr.utils.lazy import lazy_names

__version__ = version("hf-xlsr")

__getattr__, __dir__, _names = lazy_names(
    __name__,
    {
        "modeling.cmlm": ["CmlmConfig", "CmlmModel"],
        "modeling.dual_momentum": ["DualMomentumConfig", "DualMomentumModel"],
        "modeling.hictl": [
            "HictlConfig",
            "HictlForConditionalGeneration",
            "HictlForPreTraining",
            "HictlForSequenceClassification",
        ],
        "modeling.lightweight": [
            "DistillationConfig",
            "DistillationModel",
            "LightweightConfig",
            "LightweightDualTransformer",
        ],
        "trainers": trainer_names,
        "utils.errors": ["XlsrError"],
    },
)
__all__ = [*_names, "__version__"]

register_architectures()
