"""Protocol `senteval`: transfer tasks with SentEval's classifiers."""

from __future__ import annotations

from hf_xlsr.utils.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, {"evaluate": ["senteval"]})
