from __future__ import annotations

import numpy as np
import pytest
from mining_fakes import naive, unit

from hf_xlsr.mining import nearest_neighbours
from hf_xlsr.mining.search import neighbours, vectors


@pytest.mark.parametrize("k", [1, 3, 10])
@pytest.mark.parametrize(("queries", "candidates"), [(0, 3), (1, 50), (7, 300), (60, 1500)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_equals_the_naive_twin(queries: int, candidates: int, k: int, dtype: type):
    x = unit(0, queries, 24).astype(dtype)
    y = np.asfortranarray(unit(1, candidates, 24).astype(dtype))
    x.flags.writeable = False
    y.flags.writeable = False

    similarities, indices = nearest_neighbours(x, y, k)

    expected_similarities, expected_indices = naive(np.float32(x), np.float32(y), k)
    np.testing.assert_array_equal(indices, expected_indices)
    np.testing.assert_array_equal(similarities, expected_similarities)
    assert similarities.dtype == np.float32
    assert indices.dtype == np.int64
    assert indices.shape == (queries, min(k, candidates))


@pytest.mark.parametrize("size", [7, 30, 50])
def test_order_and_blocks_change_nothing(size: int, monkeypatch: pytest.MonkeyPatch):
    queries = unit(3, 50, 33)
    candidates = unit(4, 700, 33)
    similarities, indices = nearest_neighbours(queries, candidates, k=5)

    monkeypatch.setattr(neighbours, "QUERIES_AT_ONCE", size)
    monkeypatch.setattr(vectors, "NUMBERS_AT_ONCE", size)
    monkeypatch.setattr(vectors, "PRODUCTS_AT_ONCE", size)
    order = np.random.default_rng(5).permutation(700)
    shuffled_similarities, shuffled_indices = nearest_neighbours(queries, candidates[order], k=5)

    np.testing.assert_array_equal(order[shuffled_indices], indices)
    np.testing.assert_array_equal(shuffled_similarities, similarities)
