"""Sentence encoders of every kind behind one interface: loading, encoding, caching."""

from __future__ import annotations

from hf_xlsr.utils.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "cache": ["CachedEncoder", "VectorStore"],
        "teacher": ["Teacher"],
        "encoding": ["Encoder", "EncodingOptions", "embed"],
        "loading": ["load_encoder"],
    },
)
