"""Protocols that turn an encoder into numbers; every key names dataset, protocol, languages and split."""

from __future__ import annotations

from hf_xlsr.evaluation.encoding import Encoder, embed
from hf_xlsr.evaluation.plots import plot_loss_curves, plot_tsne
from hf_xlsr.evaluation.report import data_hash, load_results, results_table, save_results
from hf_xlsr.evaluation.tatoeba import tatoeba
from hf_xlsr.evaluation.xsr import xsr, xsr_both_directions
from hf_xlsr.evaluation.zero_shot import zero_shot

PROTOCOLS = {
    "tatoeba": "accuracy of finding translations among parallel sentences by cosine, both ways",
    "xsr": "precision at 1, 5 and 10 of finding translations among a pool of other sentences",
    "zero-shot": "accuracy of a classifier trained on one language's vectors, tested on other languages",
}

__all__ = [
    "PROTOCOLS",
    "Encoder",
    "data_hash",
    "embed",
    "load_results",
    "plot_loss_curves",
    "plot_tsne",
    "results_table",
    "save_results",
    "tatoeba",
    "xsr",
    "xsr_both_directions",
    "zero_shot",
]
