"""Evaluation by mteb: our encoders in its tasks, and its data as our rows."""

from __future__ import annotations

from hf_xlsr.utils.extras import require_package
from hf_xlsr.utils.lazy import lazy_names

require_package("mteb")

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {"encoder": ["MtebEncoder", "as_mteb_encoder", "evaluate_mteb", "register_model"], "tasks": ["mteb_rows"]},
)
