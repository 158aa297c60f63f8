"""Removal of language bias from sentence embeddings: fitted from texts, applied to embeddings or an encoder."""

from __future__ import annotations

from hf_xlsr.utils.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {"fitting": ["DebiasFitter", "fit_debias"], "removal": ["Debias", "DebiasedEncoder", "remove_components"]},
)
