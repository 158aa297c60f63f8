"""Plots of encoders and runs: translation pairs, spaces, results, losses. They need the extra `plots`."""

from __future__ import annotations

from hf_xlsr.utils.extras import require_package
from hf_xlsr.utils.lazy import lazy_names

require_package("matplotlib")

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "encoders": ["plot_spaces", "plot_tsne"],
        "results": ["plot_comparison", "plot_comparisons", "plot_curves", "plot_languages"],
    },
)
