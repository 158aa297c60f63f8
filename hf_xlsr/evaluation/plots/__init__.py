"""Plots of encoders and runs: translation pairs, spaces, retrieval results, losses."""

from __future__ import annotations

from hf_xlsr.evaluation.plots.curves import plot_curves
from hf_xlsr.evaluation.plots.pairs import plot_heatmap, plot_tsne
from hf_xlsr.evaluation.plots.retrieval import plot_retrieval
from hf_xlsr.evaluation.plots.spaces import plot_spaces

__all__ = ["plot_curves", "plot_heatmap", "plot_retrieval", "plot_spaces", "plot_tsne"]
