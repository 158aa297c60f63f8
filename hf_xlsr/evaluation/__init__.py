"""Protocols that turn an encoder into numbers; every key names dataset, protocol, languages and split.

Names are imported when they are first asked for: some protocols need scikit-learn, some torch, some matplotlib.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_xlsr.evaluation.averages import mean_over_languages
    from hf_xlsr.evaluation.bucc import BUCC_SETTINGS, BuccData, bucc, bucc_settings, hide_pairs, read_bucc
    from hf_xlsr.evaluation.encoding import Encoder, EncodingOptions, embed
    from hf_xlsr.evaluation.language_bias import language_bias
    from hf_xlsr.evaluation.nli import nli
    from hf_xlsr.evaluation.pair_classification import pair_classification
    from hf_xlsr.evaluation.plots import (
        plot_curves,
        plot_heatmap,
        plot_loss_curves,
        plot_retrieval,
        plot_spaces,
        plot_tsne,
    )
    from hf_xlsr.evaluation.plots_languages import plot_languages
    from hf_xlsr.evaluation.protocols import PROTOCOLS
    from hf_xlsr.evaluation.report import data_hash, load_results, results_table, save_results
    from hf_xlsr.evaluation.senteval import senteval
    from hf_xlsr.evaluation.sts import sts
    from hf_xlsr.evaluation.tatoeba import tatoeba
    from hf_xlsr.evaluation.tatoeba_variants import tatoeba_laser, tatoeba_mteb, tatoeba_xtreme
    from hf_xlsr.evaluation.xsim import xsim
    from hf_xlsr.evaluation.xsr import xsr, xsr_both_directions
    from hf_xlsr.evaluation.zero_shot import zero_shot

_MODULES = {
    "averages": ("mean_over_languages",),
    "bucc": ("BUCC_SETTINGS", "BuccData", "bucc", "bucc_settings", "hide_pairs", "read_bucc"),
    "encoding": ("Encoder", "EncodingOptions", "embed"),
    "language_bias": ("language_bias",),
    "nli": ("nli",),
    "pair_classification": ("pair_classification",),
    "plots": ("plot_curves", "plot_heatmap", "plot_loss_curves", "plot_retrieval", "plot_spaces", "plot_tsne"),
    "plots_languages": ("plot_languages",),
    "protocols": ("PROTOCOLS",),
    "report": ("data_hash", "load_results", "results_table", "save_results"),
    "senteval": ("senteval",),
    "sts": ("sts",),
    "tatoeba": ("tatoeba",),
    "tatoeba_variants": ("tatoeba_laser", "tatoeba_mteb", "tatoeba_xtreme"),
    "xsim": ("xsim",),
    "xsr": ("xsr", "xsr_both_directions"),
    "zero_shot": ("zero_shot",),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "BUCC_SETTINGS",
    "PROTOCOLS",
    "BuccData",
    "Encoder",
    "EncodingOptions",
    "bucc",
    "bucc_settings",
    "data_hash",
    "embed",
    "hide_pairs",
    "language_bias",
    "load_results",
    "mean_over_languages",
    "nli",
    "pair_classification",
    "plot_curves",
    "plot_heatmap",
    "plot_languages",
    "plot_loss_curves",
    "plot_retrieval",
    "plot_spaces",
    "plot_tsne",
    "read_bucc",
    "results_table",
    "save_results",
    "senteval",
    "sts",
    "tatoeba",
    "tatoeba_laser",
    "tatoeba_mteb",
    "tatoeba_xtreme",
    "xsim",
    "xsr",
    "xsr_both_directions",
    "zero_shot",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # Importing a module sets it as an attribute of its package, where it would hide the function of its name.
        if name in _PLACES and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
