"""Parallel sentences out of raw text: neighbours both ways, margin scoring, extraction, and the stages on disk."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_xlsr.mining.both_ways import BothWays, neighbours_both_ways
    from hf_xlsr.mining.extraction import RETRIEVALS, MinedBitext, extract_pairs, mine_vectors
    from hf_xlsr.mining.margin import MARGINS, margin_scores
    from hf_xlsr.mining.neighbours import nearest_neighbours
    from hf_xlsr.mining.outputs import write_pairs
    from hf_xlsr.mining.pipeline import mine_bitext
    from hf_xlsr.mining.scoring import score_bitext

__all__ = [
    "MARGINS",
    "RETRIEVALS",
    "BothWays",
    "MinedBitext",
    "extract_pairs",
    "margin_scores",
    "mine_bitext",
    "mine_vectors",
    "nearest_neighbours",
    "neighbours_both_ways",
    "score_bitext",
    "write_pairs",
]

# Loaded on first use: evaluation stands on the search here, and the pipeline here on evaluation's `embed`.
_PLACES = {
    "both_ways": ("BothWays", "neighbours_both_ways"),
    "extraction": ("RETRIEVALS", "MinedBitext", "extract_pairs", "mine_vectors"),
    "margin": ("MARGINS", "margin_scores"),
    "neighbours": ("nearest_neighbours",),
    "outputs": ("write_pairs",),
    "pipeline": ("mine_bitext",),
    "scoring": ("score_bitext",),
}


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
