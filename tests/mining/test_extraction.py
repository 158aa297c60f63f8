from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from margin_helpers import Triple, mine_by_hand
from mining_fakes import normalized

from hf_xlsr.mining import (
    MARGINS,
    RETRIEVALS,
    MinedBitext,
    extract_pairs,
    mine_vectors,
    neighbours_both_ways,
)


def bitext(seed: int, count: int, extra: int, noise: float, width: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Vectors with one true pair per number, in different orders, and `extra` unpaired targets."""
    rng = np.random.default_rng(seed)
    # All lie around one direction, as the vectors of real encoders do: mean cosines stay above zero.
    source = rng.normal(size=(count, width)) + 1.5
    translations = source + noise * rng.normal(size=source.shape)
    unpaired = rng.normal(size=(extra, width)) + 1.5
    return normalized(source), normalized(np.concatenate([translations, unpaired]))


def triples(mined: MinedBitext) -> list[Triple]:
    return list(zip(mined.source.tolist(), mined.target.tolist(), mined.score.tolist(), strict=True))


def pairs(mined: MinedBitext) -> list[tuple[int, int]]:
    return [triple[:2] for triple in triples(mined)]


def naive(source: np.ndarray, target: np.ndarray, k: int, margin: str, **options: Any) -> list[Triple]:
    cosines = source.astype(np.float64) @ target.astype(np.float64).T
    return mine_by_hand(cosines, k, margin, **options)


def assert_same(mined: MinedBitext, expected: list[Triple]) -> None:
    """Equal pairs and scores; the order of scores that differ by rounding alone is left open."""
    expected_pairs = [triple[:2] for triple in expected]
    expected_scores = [triple[2] for triple in expected]
    assert sorted(pairs(mined)) == sorted(expected_pairs)
    np.testing.assert_allclose(mined.score, expected_scores, rtol=1e-5, atol=1e-6)
    assert (np.diff(mined.score) <= 0).all()

    assert mined.source.dtype == np.int64
    assert mined.target.dtype == np.int64
    assert mined.score.dtype == np.float64


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 12),
    extra=st.integers(0, 6),
    k=st.integers(1, 15),
    margin=st.sampled_from(MARGINS),
    retrieval=st.sampled_from(RETRIEVALS),
    quantile=st.sampled_from([None, 0.2, 0.7]),
    one_to_one=st.booleans(),
)
def test_equals_the_naive_twin(
    seed: int, count: int, extra: int, k: int, margin: str, retrieval: str, quantile: float | None, one_to_one: bool
):
    # Few dimensions: neighbourhoods differ in density, so that means and margins decide the pairs.
    source, target = bitext(seed, count, extra, noise=0.7, width=4 + seed % 9)
    threshold = -np.inf
    if quantile is not None:
        # Between two scores, where rounding decides nothing.
        scores = [triple[2] for triple in naive(source, target, k, margin)]
        threshold = float(np.quantile(scores, quantile)) + 1e-5

    options = {
        "margin": margin,
        "retrieval": retrieval,
        "threshold": threshold,
        "one_to_one": one_to_one,
    }
    mined = mine_vectors(source, target, k=k, **options)

    assert_same(mined, naive(source, target, k, **options))


@pytest.mark.parametrize("retrieval", RETRIEVALS)
@pytest.mark.parametrize("one_to_one", [True, False])
def test_threshold_and_max_pairs_keep_the_best(retrieval: str, one_to_one: bool):
    neighbours = neighbours_both_ways(*bitext(3, 60, 20, noise=0.6), 4)

    def mine(threshold: float | None = None, max_pairs: int | None = None) -> list[Triple]:
        options: dict[str, Any] = {"retrieval": retrieval, "one_to_one": one_to_one}
        return triples(extract_pairs(neighbours, threshold=threshold, max_pairs=max_pairs, **options))

    everything = mine()
    score = everything[20][2]
    assert mine(score) == everything[:21]
    assert mine(np.nextafter(score, 9)) == everything[:20]
    assert mine(9.0) == []
    assert mine(max_pairs=7) == everything[:7]


def test_equal_scores_are_ordered_by_source_then_target():
    source = np.eye(2, dtype=np.float32)
    target = source[[1, 0, 0]]

    all_pairs = mine_vectors(source, target, k=1, one_to_one=False)
    matched = mine_vectors(source, target, k=1)

    assert pairs(all_pairs) == [(0, 1), (0, 2), (1, 0)]
    assert pairs(matched) == [(0, 1), (1, 0)]
