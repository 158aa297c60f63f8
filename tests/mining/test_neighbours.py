from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.mining import nearest_neighbours
from hf_xlsr.mining.search import neighbours


def unit(seed: int, count: int, width: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def naive(queries: np.ndarray, candidates: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """All inner products in float64, seen at float32's precision; equal ones by index."""
    products = (queries.astype(np.float64) @ candidates.astype(np.float64).T).astype(np.float32)
    order = np.argsort(-products, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(products, order, axis=1), order


def test_hand_example():
    candidates = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    similarities, indices = nearest_neighbours(np.array([[1.0, 0.0], [0.0, 1.0]]), candidates, k=2)
    np.testing.assert_allclose(similarities, [[1.0, 0.6], [1.0, 0.8]], rtol=1e-6)
    assert indices.tolist() == [[0, 1], [2, 1]]


@pytest.mark.parametrize("k", [1, 3, 10])
@pytest.mark.parametrize(("queries", "candidates"), [(1, 50), (7, 300), (60, 1500)])
def test_equals_the_naive_twin(queries: int, candidates: int, k: int):
    x, y = unit(0, queries, 24), unit(1, candidates, 24)
    similarities, indices = nearest_neighbours(x, y, k)
    expected_similarities, expected = naive(x, y, k)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_allclose(similarities, expected_similarities, atol=1e-7)
    assert similarities.dtype == np.float32 and indices.dtype == np.int64
    assert similarities.shape == indices.shape == (queries, k)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 60), k=st.integers(1, 12))
def test_ties_go_to_the_lowest_index(seed: int, count: int, k: int):
    # Small whole numbers: every product is exact, and most of them are tied with others.
    rng = np.random.default_rng(seed)
    queries, candidates = rng.integers(-1, 2, size=(25, 3)), rng.integers(-1, 2, size=(count, 3))
    similarities, indices = nearest_neighbours(queries, candidates, k)
    expected_similarities, expected = naive(queries, candidates, k)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(similarities, expected_similarities)


def test_copies_of_a_vector_tie_wherever_they_stand():
    # More copies than are found at the first go, far apart, at a width that no SIMD register divides.
    candidates = unit(2, 3001, 37)
    places = np.arange(5, 3001, 150)
    candidates[places] = candidates[5]
    for queries in (candidates[5:6], np.repeat(candidates[5:6], 40, axis=0)):
        similarities, indices = nearest_neighbours(queries, candidates, k=3)
        assert (indices == places[:3]).all()
        assert (similarities == similarities[0, 0]).all()


def test_result_does_not_depend_on_order_or_on_other_queries():
    queries, candidates = unit(3, 50, 33), unit(4, 700, 33)
    similarities, indices = nearest_neighbours(queries, candidates, k=5)
    order = np.random.default_rng(5).permutation(700)
    shuffled_similarities, shuffled = nearest_neighbours(queries, candidates[order], k=5)
    np.testing.assert_array_equal(order[shuffled], indices)
    np.testing.assert_array_equal(shuffled_similarities, similarities)
    alone = [nearest_neighbours(query[None], candidates, k=5) for query in queries]
    np.testing.assert_array_equal(np.concatenate([found for _, found in alone]), indices)
    np.testing.assert_array_equal(np.concatenate([values for values, _ in alone]), similarities)


def test_a_pair_has_one_similarity_from_both_sides():
    x, y = unit(6, 40, 31), unit(7, 30, 31)
    forward_similarities, forward = nearest_neighbours(x, y, k=30)
    backward_similarities, backward = nearest_neighbours(y, x, k=40)
    dense, transposed = np.empty((40, 30), np.float32), np.empty((30, 40), np.float32)
    np.put_along_axis(dense, forward, forward_similarities, axis=1)
    np.put_along_axis(transposed, backward, backward_similarities, axis=1)
    np.testing.assert_array_equal(dense, transposed.T)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch):
    x, y = unit(8, 45, 16), unit(9, 90, 16)
    whole = nearest_neighbours(x, y, k=4)
    monkeypatch.setattr(neighbours, "QUERIES_AT_ONCE", 7)
    monkeypatch.setattr(neighbours, "NUMBERS_AT_ONCE", 50)
    monkeypatch.setattr(neighbours, "FOUND_AT_ONCE", 30)
    monkeypatch.setattr(neighbours, "CANDIDATES_AT_ONCE", 11)
    for got, expected in zip(nearest_neighbours(x, y, k=4), whole, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_k_above_the_number_of_candidates_and_no_queries():
    assert nearest_neighbours(unit(0, 2, 4), unit(1, 3, 4), k=10)[1].shape == (2, 3)
    similarities, indices = nearest_neighbours(np.empty((0, 4)), unit(1, 3, 4), k=2)
    assert similarities.shape == indices.shape == (0, 2)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_inputs_are_not_written_to(dtype: type):
    x, y = (3 * unit(0, 5, 8)).astype(dtype), np.asfortranarray((3 * unit(1, 9, 8)).astype(dtype))
    before = x.copy(), y.copy()
    x.flags.writeable = y.flags.writeable = False
    nearest_neighbours(x, y, k=3)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(y, before[1])


def test_equal_candidates_are_scored_for_a_few_queries_at_a_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(neighbours, "FOUND_AT_ONCE", 200)
    together: list[int] = []
    products = neighbours.pair_products

    def noted(queries: np.ndarray, rows: np.ndarray, *others: np.ndarray) -> np.ndarray:
        together.append(len(rows))
        return products(queries, rows, *others)

    monkeypatch.setattr(neighbours, "pair_products", noted)
    alike = np.repeat(unit(3, 1, 16), 150, axis=0)
    similarities, indices = nearest_neighbours(unit(4, 40, 16), alike, k=2)
    assert max(together) <= 200 and indices.tolist() == [[0, 1]] * 40
    assert (similarities[:, 0] == similarities[:, 1]).all()
