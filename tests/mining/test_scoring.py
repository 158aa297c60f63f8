from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mining_fakes import NumberEncoder, numbered, write_lines

from hf_xlsr.encoders.encoding import embed
from hf_xlsr.mining.scoring import score_bitext

SOURCES = numbered("en", 30)
TARGETS = numbered("fr", 30)


def naive(
    pairs: list[tuple[str, str]], source_pool: list[str], target_pool: list[str], k: int, margin: str
) -> tuple[list[float], list[float]]:
    """Scores and cosines, in float64, of vectors rounded to float16."""

    def vector(text: str) -> np.ndarray:
        return embed(NumberEncoder(), [text])[0].astype(np.float16).astype(np.float64)

    def mean(text: str, pool: list[str]) -> float:
        cosines = [float(vector(text) @ vector(sentence)) for sentence in set(pool)]
        nearest = sorted(cosines, reverse=True)[:k]
        return sum(nearest) / len(nearest)

    scores = []
    cosines = []
    for source, target in pairs:
        cosine = float(vector(source) @ vector(target))
        average = (mean(source, target_pool) + mean(target, source_pool)) / 2
        score_of_margin = {
            "ratio": cosine / average,
            "distance": cosine - average,
            "absolute": cosine,
        }
        scores.append(score_of_margin[margin])
        cosines.append(cosine)
    return scores, cosines


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
@pytest.mark.parametrize("pools", ["own", "both", "target"])
def test_equals_the_naive_twin(margin: str, pools: str, tmp_path: Path):
    sources = [*SOURCES[:12], SOURCES[0], SOURCES[0]]
    targets = [*TARGETS[:12], TARGETS[5], TARGETS[5]]
    source_pool = sources
    target_pool = targets
    options: dict[str, Any] = {"k": 3, "margin": margin}
    if pools == "both":
        source_pool = SOURCES[10:] + SOURCES[10:14]
        options["source_pool"] = source_pool
    if pools != "own":
        target_pool = TARGETS[8:]
        options["target_pool"] = write_lines(tmp_path / "pool.txt", target_pool)

    scored = score_bitext(sources, targets, encoder=NumberEncoder(), **options)

    pairs = list(zip(sources, targets, strict=True))
    scores, cosines = naive(pairs, source_pool, target_pool, 3, margin)
    np.testing.assert_allclose(scored.score, scores, rtol=1e-6)
    np.testing.assert_allclose(scored.cosine, cosines, rtol=1e-6)
