"""Removing what tells a language from sentence vectors: fitted from texts, applied as a function or as a module."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_xlsr.debias.encoder import DebiasedEncoder
    from hf_xlsr.debias.fitting import METHODS, DebiasFitter, fit_debias
    from hf_xlsr.debias.module import DebiasModule, debias_sentence_transformer
    from hf_xlsr.debias.removal import Debias, remove_components

__all__ = [
    "METHODS",
    "Debias",
    "DebiasFitter",
    "DebiasModule",
    "DebiasedEncoder",
    "debias_sentence_transformer",
    "fit_debias",
    "remove_components",
]

# Loaded on first use: the module needs sentence-transformers, which a matrix of vectors does not.
_PLACES = {
    "encoder": ("DebiasedEncoder",),
    "fitting": ("METHODS", "DebiasFitter", "fit_debias"),
    "module": ("DebiasModule", "debias_sentence_transformer"),
    "removal": ("Debias", "remove_components"),
}


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
