"""From a trained model to folders that other tools load, and their cards."""

from __future__ import annotations

from hf_xlsr.export.language_router import LanguageRouter
from hf_xlsr.export.routed import export_routed_sentence_transformer, to_routed_sentence_transformer
from hf_xlsr.export.sentence_transformer import export_sentence_transformer, to_sentence_transformer

__all__ = [
    "LanguageRouter",
    "export_routed_sentence_transformer",
    "export_sentence_transformer",
    "to_routed_sentence_transformer",
    "to_sentence_transformer",
]
