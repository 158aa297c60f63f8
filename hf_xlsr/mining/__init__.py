"""Parallel sentences from raw text: search in both directions, margin scores, extraction, and resumable stages."""

from __future__ import annotations

from hf_xlsr.utils.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "filtering.pair_filter": ["FilterOptions", "FilteredPairs", "filter_bitext"],
        "negatives": ["NegativesRun", "hard_negatives", "run_negatives"],
        "options": ["MiningOptions", "NegativeOptions"],
        "outputs": ["write_pairs"],
        "pipeline": ["mine_bitext"],
        "scoring": ["score_bitext"],
        "search.extraction": [
            "MARGINS",
            "RETRIEVALS",
            "MinedBitext",
            "extract_pairs",
            "margin_scores",
            "mine_vectors",
        ],
        "search.int8_rows": ["int8_rows"],
        "search.neighbours": ["BothWays", "nearest_neighbours", "neighbours_both_ways"],
    },
)
