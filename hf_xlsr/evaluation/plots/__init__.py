"""Plots of encoders and runs: translation pairs, spaces, retrieval results, losses. They need the extra `plots`."""

from __future__ import annotations

from hf_xlsr.utils.extras import require_package
from hf_xlsr.utils.lazy import lazy_names

require_package("matplotlib")

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "comparison": ["plot_comparison", "plot_comparisons"],
        "curves": ["plot_curves"],
        "pairs": ["plot_heatmap", "plot_tsne"],
        "retrieval": ["plot_retrieval"],
        "spaces": ["plot_spaces"],
    },
)
