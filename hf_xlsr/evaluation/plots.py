"""Pictures of encoders and runs: translation pairs, whole spaces, retrieval results, losses over training steps."""

from __future__ import annotations

from hf_xlsr.evaluation.plots_curves import plot_curves, plot_loss_curves
from hf_xlsr.evaluation.plots_pairs import plot_heatmap, plot_tsne
from hf_xlsr.evaluation.plots_retrieval import plot_retrieval
from hf_xlsr.evaluation.plots_spaces import plot_spaces

__all__ = ["plot_curves", "plot_heatmap", "plot_loss_curves", "plot_retrieval", "plot_spaces", "plot_tsne"]
