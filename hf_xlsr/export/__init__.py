"""From a trained model to folders that other tools load."""

from __future__ import annotations

from hf_xlsr.export.pruning import prune
from hf_xlsr.export.routed import (
    debias_sentence_transformer,
    single_route,
    to_routed_sentence_transformer,
)
from hf_xlsr.export.sentence_transformer import save_export, to_sentence_transformer

__all__ = [
    "debias_sentence_transformer",
    "prune",
    "save_export",
    "single_route",
    "to_routed_sentence_transformer",
    "to_sentence_transformer",
]
