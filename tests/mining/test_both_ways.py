from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from both_ways_helpers import arrays_of, assert_same, clustered, mapped, two_searches, unit, use_small_blocks
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.mining import neighbours_both_ways
from hf_xlsr.mining.search import both_ways, tiles
from hf_xlsr.utils.errors import XlsrError


def naive(queries: np.ndarray, candidates: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """All inner products in float64, seen at float32's precision; equal ones by index."""
    products = (queries.astype(np.float64) @ candidates.astype(np.float64).T).astype(np.float32)
    order = np.argsort(-products, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(products, order, axis=1), order


@pytest.fixture(params=["float32", "bfloat16"])
def precision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the first pass multiplies; the bound on bfloat16 holds where the processor computes more exactly, too."""
    monkeypatch.setattr(tiles, "cpu_has_fast_bfloat16", lambda: request.param == "bfloat16")
    return request.param


@pytest.mark.parametrize(("count", "other", "k"), [(1, 1, 1), (1, 40, 4), (70, 3, 5), (900, 1300, 4), (300, 5000, 11)])
def test_exact_equals_two_searches(count: int, other: int, k: int, precision: str):
    source, target = unit(0, count, 48), unit(1, other, 48)
    found = neighbours_both_ways(source, target, k)
    assert (found.method, found.recall) == ("exact", 1.0)
    assert_same(found, two_searches(source, target, k))


def test_blocks_change_nothing(precision: str, monkeypatch: pytest.MonkeyPatch):
    use_small_blocks(monkeypatch)
    source, target = unit(2, 500, 24), unit(3, 333, 24)
    assert_same(neighbours_both_ways(source, target, 5), two_searches(source, target, 5))


@pytest.mark.parametrize("offset", [0.0, 0.8, 5.0])
def test_crowded_vectors(offset: float, precision: str):
    # The further from zero their middle, the nearer the cosines lie to each other, and the less bfloat16 tells.
    source, target = unit(4, 700, 32, offset), unit(5, 800, 32, offset)
    source[100:300] = unit(6, 1, 32, offset) + 1e-4 * np.random.default_rng(7).normal(size=(200, 32))
    assert_same(neighbours_both_ways(source, target, 4), two_searches(source, target, 4))


@pytest.mark.parametrize("noise", [1.0, 1e-2, 1e-3])
def test_products_are_off_against_each_other_by_no_more_than_the_slack(noise: float):
    # The last vectors lie so near each other that little differs but which way their numbers are rounded.
    x, y = ((unit(seed, 1, 64) + noise * unit(seed + 2, 60, 64)).astype(np.float32) for seed in (1, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "cpu_has_fast_bfloat16", lambda: True)
        filter_ = tiles.Filter()
    slack = filter_.slack(*both_ways._survey_both((x, y), 4, filter_))
    rounded = [torch.from_numpy(side).bfloat16().double().numpy() for side in (x, y)]
    off = x.astype(np.float64) @ y.astype(np.float64).T - rounded[0] @ rounded[1].T
    assert np.ptp(off, axis=1).max() <= slack <= 40 * np.ptp(off, axis=1).max()


def test_rounding_that_leans_one_way(precision: str):
    # Every number of a vector rounds by the same part of itself in bfloat16: the worst that can happen.
    rng = np.random.default_rng(8)
    signs = rng.choice([-1.0, 1.0], size=(900, 64)).astype(np.float32)
    signs[:300] = np.abs(signs[:300])
    scale = 1 + rng.integers(0, 40, size=(900, 1)).astype(np.float32) / 4096
    vectors = (signs * scale / 8).astype(np.float32)
    assert_same(neighbours_both_ways(vectors[:500], vectors[400:], 4), two_searches(vectors[:500], vectors[400:], 4))


def test_lengths_may_differ(precision: str):
    rng = np.random.default_rng(9)
    source, target = (unit(seed, 400, 16) * rng.uniform(0.1, 30, size=(400, 1)).astype(np.float32) for seed in (1, 2))
    assert_same(neighbours_both_ways(source, target, 4), two_searches(source, target, 4))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 40),
    other=st.integers(1, 40),
    k=st.integers(1, 9),
    fast=st.booleans(),
)
def test_ties_go_to_the_lowest_index(seed: int, count: int, other: int, k: int, fast: bool):
    # Small whole numbers: every product is exact, and most of them are tied with others.
    rng = np.random.default_rng(seed)
    source, target = (
        np.c_[rng.integers(-1, 2, size=(rows, 3)), rng.integers(1, 3, size=rows)] for rows in (count, other)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "cpu_has_fast_bfloat16", lambda: fast)
        found = neighbours_both_ways(source, target, k)
    assert_same(found, [*naive(source, target, k), *naive(target, source, k)])


@pytest.mark.parametrize("method", ["exact", "ivf"])
def test_all_vectors_alike(method: str):
    vectors = np.repeat(unit(10, 1, 20), 5000, axis=0)
    found = neighbours_both_ways(vectors, vectors[:3000], 4, method=method)
    assert (found.forward_indices == [0, 1, 2, 3]).all() and (found.backward_indices == [0, 1, 2, 3]).all()
    assert np.ptp(found.forward_similarities) == np.ptp(found.backward_similarities) == 0


def test_many_copies_of_some_vectors(precision: str):
    rng = np.random.default_rng(11)
    source, target = unit(12, 60, 16)[rng.integers(0, 60, 900)], unit(13, 50, 16)[rng.integers(0, 50, 700)]
    assert_same(neighbours_both_ways(source, target, 4), two_searches(source, target, 4))


def test_fingerprints_may_deceive(monkeypatch: pytest.MonkeyPatch):
    class Constant:
        def integers(self, *args: int | type) -> np.ndarray:
            return np.zeros(16, np.uint64)

    source, target = unit(14, 60, 16), unit(15, 50, 16)
    expected = two_searches(source, target, 4)
    monkeypatch.setattr("hf_xlsr.mining.search.vectors.np.random.default_rng", lambda seed: Constant())
    assert_same(neighbours_both_ways(source, target, 4), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("method", ["exact", "ivf"])
def test_types_and_mapped_files(tmp_path: Path, dtype: type, method: str):
    source, target = unit(16, 300, 24).astype(dtype), unit(17, 400, 24).astype(dtype)
    source.flags.writeable = target.flags.writeable = False
    before = source.copy(), target.copy()
    expected = two_searches(source, target, 4)
    options = {"method": method, "cells": 4, "probes": 4}
    assert_same(neighbours_both_ways(source, target, 4, **options), expected)
    files = mapped(tmp_path / "source.npy", source), mapped(tmp_path / "target.npy", np.asfortranarray(target))
    assert_same(neighbours_both_ways(*files, 4, **options), expected)
    np.testing.assert_array_equal(source, before[0])
    np.testing.assert_array_equal(target, before[1])


def test_a_copy_on_write_map_keeps_what_was_written(tmp_path: Path):
    np.save(tmp_path / "vectors.npy", unit(18, 50, 8))
    vectors = np.load(tmp_path / "vectors.npy", mmap_mode="c")
    vectors[3] = vectors[4]
    found = neighbours_both_ways(vectors, unit(19, 60, 8), 2)
    assert (vectors[3] == vectors[4]).all()
    np.testing.assert_array_equal(found.forward_indices[3], found.forward_indices[4])


@pytest.mark.parametrize("method", ["exact", "ivf"])
def test_arrays_in_files_change_nothing(method: str, monkeypatch: pytest.MonkeyPatch):
    source, target = unit(20, 700, 24), unit(21, 500, 24)
    expected = neighbours_both_ways(source, target, 4, method=method, cells=8, probes=3)
    choose = both_ways.choose_sizes
    monkeypatch.setattr(both_ways, "choose_sizes", lambda *given: choose(*given)._replace(rows=128, in_files=True))
    got = neighbours_both_ways(source, target, 4, method=method, cells=8, probes=3)
    assert all(isinstance(array, np.memmap) for array in arrays_of(got))
    assert_same(got, expected)


def test_the_users_precision_of_products_counts_for_nothing_and_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tiles, "cpu_has_fast_bfloat16", lambda: False)
    source, target = unit(22, 600, 32, 0.8), unit(23, 600, 32, 0.8)
    setting = torch.backends.mkldnn.matmul
    before = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        assert_same(neighbours_both_ways(source, target, 4), two_searches(source, target, 4))
        assert setting.fp32_precision == "bf16"
    finally:
        setting.fp32_precision = before


def test_all_cells_are_an_exact_search(precision: str):
    source, target = clustered(24, 600), clustered(25, 800)
    found = neighbours_both_ways(source, target, 4, method="ivf", cells=16, probes=16)
    assert (found.method, found.recall) == ("ivf", 1.0)
    assert_same(found, two_searches(source, target, 4))


def test_recall_is_the_share_of_true_neighbours():
    source, target = clustered(26, 600), clustered(27, 800)
    _, forward, _, backward = two_searches(source, target, 4)
    recalls = []
    for probes in (1, 2, 6):
        found = neighbours_both_ways(source, target, 4, method="ivf", cells=16, probes=probes)
        hits = [np.isin(row, true).sum() for row, true in zip(found.forward_indices, forward, strict=True)]
        hits += [np.isin(row, true).sum() for row, true in zip(found.backward_indices, backward, strict=True)]
        assert found.recall == pytest.approx(sum(hits) / (4 * 1400))
        recalls.append(found.recall)
        # What is found is scored exactly.
        products = np.einsum("nd,nkd->nk", source.astype(np.float64), target[found.forward_indices])
        np.testing.assert_allclose(found.forward_similarities, products, rtol=1e-6)
        assert (np.diff(found.forward_similarities) <= 0).all()
        again = neighbours_both_ways(source, target, 4, method="ivf", cells=16, probes=probes)
        assert_same(again, found)
    assert 0.3 < recalls[0] < recalls[1] < recalls[2]


def test_cells_of_fewer_than_k_vectors():
    source, target = clustered(28, 90), clustered(29, 70)
    found = neighbours_both_ways(source, target, 20, method="ivf", cells=64, probes=1)
    assert np.isfinite(found.forward_similarities).all() and np.isfinite(found.backward_similarities).all()
    assert all(len(set(row)) == 20 for row in found.forward_indices.tolist())


def test_auto_goes_by_size(monkeypatch: pytest.MonkeyPatch):
    source, target = unit(30, 100, 8), unit(31, 50, 8)
    monkeypatch.setattr(both_ways, "LARGEST_EXACT", 100 * 50 * 8)
    assert neighbours_both_ways(source, target).method == "exact"
    assert neighbours_both_ways(unit(30, 101, 8), target).method == "ivf"


def test_empty_sides():
    for counts in ((0, 3), (3, 0), (0, 0)):
        found = neighbours_both_ways(np.empty((counts[0], 4)), np.ones((counts[1], 4)), 2)
        assert [array.shape for array in arrays_of(found)] == [(counts[0], 0)] * 2 + [(counts[1], 0)] * 2


def with_row(row: int, value: float) -> np.ndarray:
    vectors = unit(32, 2000, 4)
    vectors[[row, 1999]] = value
    return vectors


@pytest.mark.parametrize(
    ("source", "target", "options", "message"),
    [
        (np.eye(2), np.eye(2), {"k": 0}, "k is 0; give 1 or more"),
        (np.eye(2), np.eye(2), {"cells": 0}, "cells is 0"),
        (np.eye(2), np.eye(2), {"probes": -1}, "probes is -1"),
        (np.eye(2), np.eye(2), {"method": "exat"}, "method is 'exat'; did you mean 'exact'?"),
        (np.eye(2), np.eye(2), {"device": "gpu9"}, "device is 'gpu9'"),
        (np.eye(2), np.eye(3), {}, "source is 2 wide and target 3"),
        (np.ones(2), np.eye(2), {}, r"source has shape \(2,\)"),
        (np.eye(2), np.array([["a", "b"]]), {}, "target holds <U1"),
        (with_row(1500, np.nan), np.eye(4), {}, r"row 1500 of source holds NaN or infinity \(2 such rows\)"),
        (np.eye(4), with_row(3, -np.inf), {}, r"row 3 of target holds NaN or infinity \(2 such rows\)"),
        (np.eye(4), with_row(1200, 0.0), {}, r"row 1200 of target is all zeros.*\(2 such rows\)"),
    ],
)
def test_mistakes_are_named(source: np.ndarray, target: np.ndarray, options: dict, message: str, tmp_path: Path):
    with pytest.raises(XlsrError, match=message):
        neighbours_both_ways(source, target, folder=tmp_path, **options)
    assert not list(tmp_path.rglob("*.npy"))
