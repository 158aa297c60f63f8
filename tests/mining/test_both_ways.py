from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mining_fakes import assert_same, clustered, mapped, two_searches, unit, use_small_blocks

from hf_xlsr.mining import BothWays, neighbours_both_ways
from hf_xlsr.mining.search import cells as search_cells
from hf_xlsr.mining.search import tiles
from hf_xlsr.mining.search.block_search import SIZES, SearchSize, choose_sizes
from hf_xlsr.utils.errors import XlsrError


@pytest.fixture(params=["float32", "bfloat16"])
def precision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Precision of the first pass; the error bound of bfloat16 also holds where the processor computes more exactly."""
    monkeypatch.setattr(tiles, "cpu_has_fast_bfloat16", lambda: request.param == "bfloat16")
    return request.param


def crowded(offset: float) -> tuple[np.ndarray, np.ndarray]:
    """The further from zero their middle, the nearer the cosines are to each other, and the less bfloat16 tells."""
    source = unit(4, 700, 32, offset)
    noise = np.random.default_rng(7).normal(size=(200, 32))
    source[100:300] = unit(6, 1, 32, offset) + 1e-4 * noise
    return source, unit(5, 800, 32, offset)


def rounding_one_way() -> tuple[np.ndarray, np.ndarray]:
    """All numbers of a vector have the same relative rounding error in bfloat16: the worst case."""
    rng = np.random.default_rng(8)
    signs = rng.choice([-1.0, 1.0], size=(900, 64))
    signs[:300] = 1
    excess = rng.integers(0, 40, size=(900, 1)) / 4096
    vectors = (signs * (1 + excess) / 8).astype(np.float32)
    return vectors[:500], vectors[400:]


def different_lengths() -> tuple[np.ndarray, np.ndarray]:
    lengths = np.random.default_rng(9).uniform(0.1, 30, size=(400, 1)).astype(np.float32)
    return unit(1, 400, 16) * lengths, unit(2, 400, 16) * lengths[::-1]


def copies() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    source_rows = rng.integers(0, 60, 900)
    target_rows = rng.integers(0, 50, 700)
    return unit(12, 60, 16)[source_rows], unit(13, 50, 16)[target_rows]


def plain(count: int, other: int) -> tuple[np.ndarray, np.ndarray]:
    return unit(0, count, 48), unit(1, other, 48)


SIDES = {
    "single": plain(1, 1),
    "few": plain(70, 3),
    "many": plain(900, 1300),
    "crowded 0.8": crowded(0.8),
    "crowded 5": crowded(5.0),
    "copies": copies(),
    "rounding one way": rounding_one_way(),
    "lengths": different_lengths(),
}


@pytest.mark.sample(12)
@pytest.mark.parametrize("blocks", ["usual", "small"])
@pytest.mark.parametrize("sides", SIDES)
def test_exact_equals_two_naive_searches(sides: str, blocks: str, precision: str, monkeypatch: pytest.MonkeyPatch):
    if blocks == "small":
        use_small_blocks(monkeypatch)
    source, target = SIDES[sides]

    neighbours = neighbours_both_ways(source, target, 5)

    assert neighbours.method == "exact"
    assert neighbours.recall == 1.0
    assert_same(neighbours, two_searches(source, target, 5))


def small_integers(rng: np.random.Generator, count: int) -> np.ndarray:
    """Vectors whose products are exact, and mostly tied."""
    numbers = rng.integers(-1, 2, size=(count, 4))
    numbers[:, 3] = rng.integers(1, 3, size=count)
    return numbers


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    sources=st.integers(1, 40),
    targets=st.integers(1, 40),
    k=st.integers(1, 9),
    fast=st.booleans(),
)
def test_ties_go_to_the_lowest_index(seed: int, sources: int, targets: int, k: int, fast: bool):
    rng = np.random.default_rng(seed)
    source = small_integers(rng, sources)
    target = small_integers(rng, targets)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "cpu_has_fast_bfloat16", lambda: fast)
        neighbours = neighbours_both_ways(source, target, k)

    assert_same(neighbours, two_searches(source, target, k))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("method", ["exact", "ivf"])
def test_types_and_mapped_files(tmp_path: Path, dtype: type, method: str):
    source = unit(16, 300, 24).astype(dtype)
    target = unit(17, 400, 24).astype(dtype)
    source.flags.writeable = False
    target.flags.writeable = False
    source_file = mapped(tmp_path / "source.npy", source)
    target_file = mapped(tmp_path / "target.npy", np.asfortranarray(target))

    options: dict[str, Any] = {"method": method, "cells": 4, "probes": 4}
    from_arrays = neighbours_both_ways(source, target, 4, **options)
    from_files = neighbours_both_ways(source_file, target_file, 4, **options)

    expected = two_searches(source, target, 4)
    assert_same(from_arrays, expected)
    assert_same(from_files, expected)


def true_neighbours(neighbours: BothWays, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Whether each true neighbour of both directions was found, bool."""
    k = neighbours.forward_indices.shape[1]
    _, forward, _, backward = two_searches(source, target, k)
    forward_hits = (neighbours.forward_indices[:, :, None] == forward[:, None]).any(1)
    backward_hits = (neighbours.backward_indices[:, :, None] == backward[:, None]).any(1)
    return np.concatenate([forward_hits, backward_hits])


def test_recall_is_the_share_of_true_neighbours():
    source = clustered(26, 600)
    target = clustered(27, 800)

    recalls = []
    for probes in (1, 2, 6):
        options: dict[str, Any] = {"method": "ivf", "cells": 16, "probes": probes}
        neighbours = neighbours_both_ways(source, target, 4, **options)
        recalls.append(neighbours.recall)

        recall_of_query = true_neighbours(neighbours, source, target).mean(1)
        assert len(recall_of_query) == 1400
        assert neighbours.recall == pytest.approx(recall_of_query.mean())
        standard_error = recall_of_query.std() / np.sqrt(1400)
        assert neighbours.recall_margin == pytest.approx(1.96 * standard_error)

        # Scores are exact.
        scores = neighbours.forward_similarities
        products = np.einsum("nd,nkd->nk", source.astype(np.float64), target[neighbours.forward_indices])
        np.testing.assert_allclose(scores, products, rtol=1e-6)
        assert (np.diff(scores) <= 0).all()

        again = neighbours_both_ways(source, target, 4, **options)
        assert_same(again, neighbours)

    assert 0.3 < recalls[0] < recalls[1] < recalls[2]


@pytest.mark.slow
def test_groups_of_centroids_find_nearly_what_all_centroids_do(monkeypatch: pytest.MonkeyPatch):
    source = clustered(26, 3000)
    target = clustered(27, 4000)
    options: dict[str, Any] = {"method": "ivf", "cells": 256}
    from_all = neighbours_both_ways(source, target, 4, probes=8, **options)
    monkeypatch.setattr(search_cells, "TWO_LEVELS", 64)

    # All groups.
    monkeypatch.setattr(search_cells, "GROUPS_PROBED", 300)
    tile = tiles.Tile(512, tiles.Filter(), 300)
    centroids = search_cells.Centroids(source[:300], tile)
    order = np.argsort(-target @ source[:300].T, axis=1)
    for count in (1, 8):
        numbers = centroids.nearest(torch.from_numpy(target), count)
        np.testing.assert_array_equal(np.sort(numbers), np.sort(order[:, :count]))

    # Few of them.
    monkeypatch.setattr(search_cells, "GROUPS_PROBED", 3)
    from_groups = neighbours_both_ways(source, target, 4, probes=8, **options)
    assert from_all.recall > 0.5
    assert from_all.recall - 0.05 < from_groups.recall < 1

    # As many groups as the probes need: all of them find everything.
    from_every_group = neighbours_both_ways(source, target, 4, probes=256, **options)
    assert_same(from_every_group, two_searches(source, target, 4))


@pytest.mark.parametrize("wanted", [0.5, 0.99])
def test_probes_rise_until_a_sample_has_the_recall(wanted: float, tmp_path: Path):
    source = unit(3, 1500, 16)  # without clusters, where few cells find little
    target = unit(4, 1400, 16)
    options: dict[str, Any] = {"method": "ivf", "cells": 64, "probes": 2}
    from_two_probes = neighbours_both_ways(source, target, 4, **options)
    assert from_two_probes.recall < 0.5

    options |= {"recall": wanted, "folder": tmp_path}
    neighbours = neighbours_both_ways(source, target, 4, **options)
    assert neighbours.recall >= wanted - 0.02
    assert 0 <= neighbours.recall_margin < 0.03
    true_recall = true_neighbours(neighbours, source, target).mean()
    assert abs(true_recall - neighbours.recall) <= 2 * neighbours.recall_margin + 1e-9

    again = neighbours_both_ways(source, target, 4, **options)
    assert again.recall == neighbours.recall
    np.testing.assert_array_equal(again.forward_indices, neighbours.forward_indices)


def test_memory_of_a_billion_sentences() -> None:
    rows = 10**9
    size = SearchSize((rows, rows), width=384, itemsize=2, k=4, listed=8, method="ivf", cells=2**20, probes=32)
    assert choose_sizes(size, 19_400_000_000, in_files=True) in SIZES["ivf"]
    with pytest.raises(XlsrError, match="MB"):
        choose_sizes(size, 19_300_000_000, in_files=True)
