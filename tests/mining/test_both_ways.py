from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mining_fakes import assert_same, clustered, mapped, naive, two_searches, unit, use_small_blocks

from hf_xlsr.mining import neighbours_both_ways
from hf_xlsr.mining.search import cells as search_cells
from hf_xlsr.mining.search import tiles


@pytest.fixture(params=["float32", "bfloat16"])
def precision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Precision of the first pass; the error bound of bfloat16 also holds where the processor computes more exactly."""
    monkeypatch.setattr(tiles, "cpu_has_fast_bfloat16", lambda: request.param == "bfloat16")
    return request.param


def crowded(offset: float) -> tuple[np.ndarray, np.ndarray]:
    """The further from zero their middle, the nearer the cosines are to each other, and the less bfloat16 tells."""
    source, target = unit(4, 700, 32, offset), unit(5, 800, 32, offset)
    source[100:300] = unit(6, 1, 32, offset) + 1e-4 * np.random.default_rng(7).normal(size=(200, 32))
    return source, target


def rounding_one_way() -> tuple[np.ndarray, np.ndarray]:
    """All numbers of a vector have the same relative rounding error in bfloat16: the worst case."""
    rng = np.random.default_rng(8)
    signs = rng.choice([-1.0, 1.0], size=(900, 64)).astype(np.float32)
    signs[:300] = np.abs(signs[:300])
    vectors = (signs * (1 + rng.integers(0, 40, size=(900, 1)).astype(np.float32) / 4096) / 8).astype(np.float32)
    return vectors[:500], vectors[400:]


def different_lengths() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(9)
    source, target = (unit(seed, 400, 16) * rng.uniform(0.1, 30, size=(400, 1)).astype(np.float32) for seed in (1, 2))
    return source, target


def copies() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    return unit(12, 60, 16)[rng.integers(0, 60, 900)], unit(13, 50, 16)[rng.integers(0, 50, 700)]


def plain(count: int, other: int) -> tuple[np.ndarray, np.ndarray]:
    return unit(0, count, 48), unit(1, other, 48)


SIDES = {
    "single": plain(1, 1), "few": plain(70, 3), "many": plain(900, 1300),
    "crowded 0.8": crowded(0.8), "crowded 5": crowded(5.0), "copies": copies(),
    "rounding one way": rounding_one_way(), "lengths": different_lengths(),
}  # fmt: skip


@pytest.mark.parametrize("blocks", ["usual", "small"])
@pytest.mark.parametrize("sides", SIDES)
def test_exact_equals_two_naive_searches(sides: str, blocks: str, precision: str, monkeypatch: pytest.MonkeyPatch):
    if blocks == "small":
        use_small_blocks(monkeypatch)
    found = neighbours_both_ways(*SIDES[sides], 5)
    assert (found.method, found.recall) == ("exact", 1.0)
    assert_same(found, two_searches(*SIDES[sides], 5))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.booleans())
def test_ties_go_to_the_lowest_index(seed: int, count: int, other: int, k: int, fast: bool):
    # Small integers: every product is exact, and most of them are tied.
    rng = np.random.default_rng(seed)
    source, target = (
        np.c_[rng.integers(-1, 2, size=(rows, 3)), rng.integers(1, 3, size=rows)] for rows in (count, other)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "cpu_has_fast_bfloat16", lambda: fast)
        found = neighbours_both_ways(source, target, k)
    assert_same(found, [*naive(source, target, k), *naive(target, source, k)])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("method", ["exact", "ivf"])
def test_types_and_mapped_files(tmp_path: Path, dtype: type, method: str):
    source, target = unit(16, 300, 24).astype(dtype), unit(17, 400, 24).astype(dtype)
    source.flags.writeable = target.flags.writeable = False
    expected = two_searches(source, target, 4)
    options: dict[str, Any] = {"method": method, "cells": 4, "probes": 4}
    assert_same(neighbours_both_ways(source, target, 4, **options), expected)
    files = mapped(tmp_path / "source.npy", source), mapped(tmp_path / "target.npy", np.asfortranarray(target))
    assert_same(neighbours_both_ways(*files, 4, **options), expected)


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
        # Scores are exact.
        products = np.einsum("nd,nkd->nk", source.astype(np.float64), target[found.forward_indices])
        np.testing.assert_allclose(found.forward_similarities, products, rtol=1e-6)
        assert (np.diff(found.forward_similarities) <= 0).all()
        assert_same(neighbours_both_ways(source, target, 4, method="ivf", cells=16, probes=probes), found)
    assert 0.3 < recalls[0] < recalls[1] < recalls[2]


def test_groups_of_centroids_find_nearly_what_all_centroids_do(monkeypatch: pytest.MonkeyPatch):
    source, target = clustered(26, 3000), clustered(27, 4000)
    options: dict[str, Any] = {"method": "ivf", "cells": 256}
    plain = neighbours_both_ways(source, target, 4, probes=8, **options)
    monkeypatch.setattr(search_cells, "TWO_LEVELS", 64)
    tile = tiles.Tile(512, tiles.Filter(), 300)
    for count in (1, 8):  # all groups
        monkeypatch.setattr(search_cells, "GROUPS_PROBED", 300)
        numbers = search_cells.Centroids(source[:300], tile).nearest(torch.from_numpy(target), count)
        best = np.argsort(-target @ source[:300].T, axis=1)[:, :count]
        np.testing.assert_array_equal(np.sort(numbers), np.sort(best))
    monkeypatch.setattr(search_cells, "GROUPS_PROBED", 3)
    found = neighbours_both_ways(source, target, 4, probes=8, **options)
    assert 0.5 < plain.recall and plain.recall - 0.05 < found.recall < 1
    # As many groups as the probes need: all of them find everything.
    assert_same(neighbours_both_ways(source, target, 4, probes=256, **options), two_searches(source, target, 4))


@pytest.mark.parametrize("wanted", [0.5, 0.99])
def test_probes_rise_until_a_sample_has_the_recall(wanted: float, tmp_path: Path):
    source, target = unit(3, 1500, 16), unit(4, 1400, 16)  # without clusters, where few cells find little
    few = neighbours_both_ways(source, target, 4, method="ivf", cells=64, probes=2)
    options: dict[str, Any] = {"method": "ivf", "cells": 64, "probes": 2, "recall": wanted}
    found = neighbours_both_ways(source, target, 4, **options, folder=tmp_path)
    assert few.recall < 0.5 and found.recall >= wanted - 0.02
    assert 0 <= found.recall_margin < 0.03
    exact = neighbours_both_ways(source, target, 4, method="exact")
    sides = ((found.forward_indices, exact.forward_indices), (found.backward_indices, exact.backward_indices))
    shares = np.concatenate([(own[:, :, None] == true[:, None]).any(1).ravel() for own, true in sides])
    assert abs(shares.mean() - found.recall) <= 2 * found.recall_margin + 1e-9
    again = neighbours_both_ways(source, target, 4, **options, folder=tmp_path)
    assert again.recall == found.recall and np.array_equal(again.forward_indices, found.forward_indices)
