from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.errors import XlsrError
from hf_xlsr.mining import MARGINS, MinedPair, margin_scores, mine_pairs


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def bitext(seed: int, count: int, extra: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Vectors with one true pair per number, in different orders, and `extra` unpaired targets."""
    rng = np.random.default_rng(seed)
    # All lie around one direction, as the vectors of real encoders do: mean cosines stay above zero.
    source = rng.normal(size=(count, 12)) + 1.5
    target = np.concatenate([source + noise * rng.normal(size=source.shape), rng.normal(size=(extra, 12)) + 1.5])
    return unit(source), unit(target)


def naive(source: np.ndarray, target: np.ndarray, k: int, margin: str, threshold: float | None) -> list[MinedPair]:
    """Sentence by sentence from the dense matrix, in float64."""
    cosines = source.astype(np.float64) @ target.astype(np.float64).T

    def neighbours(row: np.ndarray) -> list[int]:
        return sorted(range(len(row)), key=lambda j: (-row[j], j))[:k]

    mean_x = [float(np.mean([row[j] for j in neighbours(row)])) for row in cosines]
    mean_y = [float(np.mean([column[i] for i in neighbours(column)])) for column in cosines.T]

    def score(i: int, j: int) -> float:
        average = (mean_x[i] + mean_y[j]) / 2
        return {"ratio": cosines[i, j] / average, "distance": cosines[i, j] - average, "absolute": cosines[i, j]}[
            margin
        ]

    proposed = {(i, max(neighbours(row), key=lambda j: score(i, j))) for i, row in enumerate(cosines)}
    proposed |= {(max(neighbours(column), key=lambda i: score(i, j)), j) for j, column in enumerate(cosines.T)}
    pairs: list[MinedPair] = []
    for i, j in sorted(proposed, key=lambda pair: (-score(*pair), pair)):
        free = all(i != pair.source_index and j != pair.target_index for pair in pairs)
        if free and (threshold is None or score(i, j) >= threshold):
            pairs.append(MinedPair(i, j, score(i, j)))
    return pairs


def test_scores_by_hand():
    cosine, mean_x, mean_y = np.array([0.9, 0.2]), np.array([0.8, 0.5]), np.array([0.4, 0.3])
    np.testing.assert_allclose(margin_scores(cosine, mean_x, mean_y), [1.5, 0.5])
    np.testing.assert_allclose(margin_scores(cosine, mean_x, mean_y, "distance"), [0.3, -0.2])
    np.testing.assert_allclose(margin_scores(cosine, mean_x, mean_y, "absolute"), cosine)


def test_scores_broadcast_neighbour_means():
    scores = margin_scores(np.full((2, 3), 0.6), np.array([[0.4], [0.2]]), np.full((2, 3), 0.4), "distance")
    np.testing.assert_allclose(scores, [[0.2] * 3, [0.3] * 3])


@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("mean", [-0.3, 0.0, 0.3])
def test_a_better_cosine_is_never_a_worse_score(margin: str, mean: float):
    cosines = np.linspace(-1, 1, 21)
    scores = margin_scores(cosines, np.array(mean), np.array(mean), margin)
    assert (np.diff(scores) > 0).all() and np.isfinite(scores).all()


def test_margin_overrules_cosine():
    # Target 0 is near everything (a hub): source 0 has the higher cosine with it, but the better margin with target 1.
    source = unit(np.array([[1.0, 0.0, 0.3], [1.0, 0.5, 0.0], [1.0, 0.45, -0.1]]))
    target = unit(np.array([[1.0, 0.1, 0.1], [1.0, -0.2, 0.8]]))
    assert [pair[:2] for pair in mine_pairs(source, target, k=3, margin="absolute")] == [(0, 0)]
    for margin in ("ratio", "distance"):
        assert [pair[:2] for pair in mine_pairs(source, target, k=3, margin=margin)] == [(0, 1), (2, 0)]


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 12),
    extra=st.integers(0, 6),
    k=st.integers(1, 15),
    margin=st.sampled_from(MARGINS),
    quantile=st.sampled_from([None, 0.2, 0.7]),
)
def test_equals_the_naive_twin(seed: int, count: int, extra: int, k: int, margin: str, quantile: float | None):
    source, target = bitext(seed, count, extra, noise=0.7)
    threshold = None
    if quantile is not None:
        # Between two scores, where rounding decides nothing.
        scores = np.array([pair.score for pair in naive(source, target, k, margin, None)])
        threshold = float(np.quantile(scores, quantile)) + 1e-5
    expected = naive(source, target, k, margin, threshold)
    got = mine_pairs(source, target, k=k, margin=margin, threshold=threshold)
    assert sorted(pair[:2] for pair in got) == sorted(pair[:2] for pair in expected)
    np.testing.assert_allclose([pair.score for pair in got], [pair.score for pair in expected], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("seed", range(4))
def test_equals_the_naive_twin_among_hubs(seed: int, margin: str):
    # Few dimensions and much noise: neighbourhoods differ in density, so that means and margins decide the pairs.
    rng = np.random.default_rng(seed)
    source, target = (unit(rng.normal(size=(count, 4)) + 1.0) for count in (70, 50))
    expected = naive(source, target, 6, margin, None)
    got = mine_pairs(source, target, k=6, margin=margin)
    assert [pair[:2] for pair in got] == [pair[:2] for pair in expected]
    np.testing.assert_allclose([pair.score for pair in got], [pair.score for pair in expected], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("margin", MARGINS)
def test_pairs_are_one_to_one_sorted_and_true(margin: str):
    source, target = bitext(0, 200, 50, noise=0.05)
    order = np.random.default_rng(1).permutation(len(target))
    pairs = mine_pairs(source, target[order], margin=margin)
    assert len({pair.source_index for pair in pairs}) == len({pair.target_index for pair in pairs}) == len(pairs)
    scores = [pair.score for pair in pairs]
    assert scores == sorted(scores, reverse=True)
    assert [order[pair.target_index] == pair.source_index for pair in pairs[:200]] == [True] * 200


def test_sides_can_be_swapped():
    source, target = bitext(2, 60, 20, noise=0.6)
    forward = mine_pairs(source, target)
    backward = mine_pairs(target, source)
    assert [(pair.target_index, pair.source_index, pair.score) for pair in backward] == [tuple(p) for p in forward]


def test_threshold_is_inclusive_and_cuts_the_tail():
    source, target = bitext(3, 60, 20, noise=0.6)
    pairs = mine_pairs(source, target)
    assert mine_pairs(source, target, threshold=pairs[20].score) == pairs[:21]
    assert mine_pairs(source, target, threshold=np.nextafter(pairs[20].score, 9)) == pairs[:20]
    assert mine_pairs(source, target, threshold=9.0) == []


def test_max_pairs_keeps_the_best():
    source, target = bitext(4, 30, 5, noise=0.5)
    assert mine_pairs(source, target, max_pairs=7) == mine_pairs(source, target)[:7]
    assert mine_pairs(source, target, max_pairs=1000) == mine_pairs(source, target)


def test_equal_scores_go_to_the_lowest_indices():
    same = np.tile(np.array([[0.6, 0.8]], np.float32), (3, 1))
    assert [pair[:2] for pair in mine_pairs(same, same, k=2)] == [(0, 0)]
    assert mine_pairs(same, same[:1], k=2)[0][:2] == (0, 0)


def test_an_empty_side_gives_no_pairs():
    assert mine_pairs(np.empty((0, 3)), np.eye(3)) == mine_pairs(np.eye(3), np.empty((0, 3))) == []


def test_mistakes_are_named():
    eye = np.eye(3)
    with pytest.raises(XlsrError, match="margin is 'ration'; did you mean 'ratio'"):
        mine_pairs(eye, eye, margin="ration")
    with pytest.raises(XlsrError, match="margin is 'ration'; did you mean 'ratio'"):
        margin_scores(eye, eye, eye, "ration")
    with pytest.raises(XlsrError, match="max_pairs is 0"):
        mine_pairs(eye, eye, max_pairs=0)
    with pytest.raises(XlsrError, match="k is 0"):
        mine_pairs(eye, eye, k=0)
    with pytest.raises(XlsrError, match="row 0 of target_vectors holds NaN"):
        mine_pairs(eye, np.full((1, 3), np.nan))
