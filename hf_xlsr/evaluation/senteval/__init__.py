"""Protocol `senteval`: transfer tasks with SentEval's classifiers."""

from __future__ import annotations
