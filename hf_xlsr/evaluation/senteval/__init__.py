"""Protocol `senteval`: transfer tasks with SentEval's classifiers."""

from __future__ import annotations

from hf_xlsr.evaluation.senteval.evaluate import senteval

__all__ = ["senteval"]
