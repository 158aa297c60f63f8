from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from margin_helpers import Triple, mine_by_hand
from mining_fakes import normalized
from whole_extraction import extract_at_once

from hf_xlsr.mining import (
    MARGINS,
    RETRIEVALS,
    BothWays,
    MinedBitext,
    extract_pairs,
    mine_vectors,
    neighbours_both_ways,
)
from hf_xlsr.mining.search import extraction, sorted_pairs


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


@settings(max_examples=100)
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


def tied_neighbours(rng: np.random.Generator, source_count: int, target_count: int, k: int) -> BothWays:
    """Neighbourhoods with few different similarities, which differ between the directions now and then."""

    def of_side(rows: int, others: int) -> tuple[np.ndarray, np.ndarray]:
        columns = min(k, others)
        indices = np.stack([rng.permutation(others)[:columns] for _ in range(rows)])
        similarities = rng.choice([-0.25, 0.0, 0.25, 0.5, 0.75], (rows, columns)).astype(np.float32)
        return np.sort(similarities, axis=1)[:, ::-1], indices

    return BothWays(*of_side(source_count, target_count), *of_side(target_count, source_count), "exact", 1.0)


@settings(max_examples=300)
@given(
    seed=st.integers(0, 10**6),
    source_count=st.integers(1, 40),
    target_count=st.integers(1, 40),
    k=st.integers(1, 5),
    margin=st.sampled_from(MARGINS),
    retrieval=st.sampled_from(RETRIEVALS),
    one_to_one=st.booleans(),
    threshold=st.sampled_from([None, -np.inf, 0.5, 1.0]),
    max_pairs=st.sampled_from([None, 1, 7]),
    excluded=st.sampled_from([None, 0.0, 0.3, 1.0]),
    memory=st.sampled_from([1, 400, 4000, 10**9]),
    in_file=st.booleans(),
)
def test_result_does_not_depend_on_the_memory(
    seed: int,
    source_count: int,
    target_count: int,
    k: int,
    excluded: float | None,
    memory: int,
    in_file: bool,
    **options: Any,
) -> None:
    rng = np.random.default_rng(seed)
    neighbours = tied_neighbours(rng, source_count, target_count, k)
    if excluded is not None:
        options["without"] = (rng.random(source_count) < excluded, rng.random(target_count) < excluded)
    expected = extract_at_once(neighbours, **options)

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(extraction, "SMALLEST_MEMORY", 1)
        patch.setattr(sorted_pairs, "PAIRS_AT_ONCE", 3)
        file = Path(folder) / "pairs.npy" if in_file else None
        mined = extract_pairs(neighbours, memory=memory, file=file, **options)
        assert triples(mined) == triples(expected)
        assert [path.name for path in Path(folder).iterdir()] == ["pairs.npy"] * in_file


def test_proposals_of_one_side_alone() -> None:
    """Without rows on the other side there is nothing to propose."""
    no_vectors = np.empty((0, 3))
    assert len(mine_vectors(np.eye(3), no_vectors)) == 0
    assert len(mine_vectors(no_vectors, np.eye(3), retrieval="backward")) == 0


@pytest.mark.parametrize("run_count", [2, 7])
def test_merged_runs_are_sorted(run_count: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    blocks = []
    for start in range(0, run_count * 50, 50):
        targets = np.arange(start, start + 50)
        blocks.append(sorted_pairs.pairs_of(rng.integers(0, 5, 50), targets, rng.integers(0, 3, 50).astype(float)))
    whole = np.concatenate(blocks)
    expected = sorted(whole.tolist(), key=lambda pair: (-pair[0], pair[1], pair[2]))

    memory = 50 * sorted_pairs.BYTES_PER_PAIR  # a run is one block
    merged = np.concatenate(list(sorted_pairs.best_first(blocks, memory, tmp_path)))

    assert merged.tolist() == expected
    assert len(list(tmp_path.iterdir())) == run_count
