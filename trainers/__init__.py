"""Trainers: the Hugging Face Trainer with our batching, loss parts, protocols and exact resume. Lazily imported."""

from __future__ import annotations

from hf_xlsr.utils.lazy import TRAINERS, lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, TRAINERS)
