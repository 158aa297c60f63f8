"""How far apart a sentence and its translation are."""

from __future__ import annotations

from typing import Any

import numpy as np

from hf_xlsr.evaluation import register_protocol
from hf_xlsr.evaluation.pairs import encode_pairs


@register_protocol("gap", headline="gap", lower_is_better=True, unit="")
def gap(encoder: Any, sources: list[str], targets: list[str], *, languages: tuple[str, str], **encoding: Any) -> Any:
    """Distance between the unit vectors of a sentence and of its translation."""
    source_vectors, target_vectors = encode_pairs(encoder, sources, targets, languages, **encoding)
    distances = np.linalg.norm(source_vectors - target_vectors, axis=1)
    return {"gap": distances, "pairs": len(sources)}
