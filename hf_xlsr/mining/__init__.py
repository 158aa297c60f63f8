"""Parallel sentences out of raw text: exact neighbours and margin scoring on sentence vectors."""

from __future__ import annotations

from hf_xlsr.mining.margin import MARGINS, MinedPair, margin_scores, mine_pairs
from hf_xlsr.mining.neighbours import nearest_neighbours

__all__ = ["MARGINS", "MinedPair", "margin_scores", "mine_pairs", "nearest_neighbours"]
