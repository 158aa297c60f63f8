"""From a trained model to folders that other tools load, and their cards."""

from __future__ import annotations

from hf_xlsr.export.sentence_transformer import export_sentence_transformer, to_sentence_transformer

__all__ = ["export_sentence_transformer", "to_sentence_transformer"]
