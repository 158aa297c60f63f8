"""Losses, callbacks and evaluators for the trainer of sentence-transformers. Names are imported on first use."""

from __future__ import annotations

from hf_xlsr.utils.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "debiasing": ["debias"],
        "dual_momentum": ["DualMomentumCallback", "DualMomentumLoss"],
        "evaluators": ["BuccEvaluator", "LanguageBiasEvaluator", "TatoebaEvaluator", "XsimEvaluator"],
        "losses": ["AdditiveMarginLoss", "AlignmentSimilarityLoss", "SentenceContrastLoss"],
    },
)
