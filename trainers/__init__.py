"""Trainers: the Hugging Face Trainer with our batching, loss parts, protocols and exact resume. Lazily imported."""

from __future__ import annotations

from hf_xlsr.utils.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "adapters": ["add_adapters"],
        "arguments": [
            "CmlmTrainingArguments",
            "DualMomentumTrainingArguments",
            "HictlTrainingArguments",
            "LightweightTrainingArguments",
            "XlsrTrainingArguments",
        ],
        "base": ["XlsrTrainer"],
        "cmlm": ["CmlmTrainer"],
        "dual_momentum": ["DualMomentumTrainer", "MemoryQueueCallback", "MomentumCallback"],
        "fine_tune": ["FineTuneTrainer", "FineTuneTrainingArguments"],
        "fitted": ["fit_classifier"],
        "hictl": ["HictlTrainer"],
        "lightweight": ["DistillationTrainer", "LightweightTrainer"],
        "translation": ["TranslationTrainer", "TranslationTrainingArguments"],
    },
)
