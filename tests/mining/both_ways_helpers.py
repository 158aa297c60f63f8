"""Vectors to search, and plain searches to compare with, shared by tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hf_xlsr.mining import BothWays
from hf_xlsr.mining.search import block_search, tiles

ARRAYS = ("forward_similarities", "forward_indices", "backward_similarities", "backward_indices")


def unit(seed: int, count: int, width: int, offset: float = 0.0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, width)) + offset
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def naive(queries: np.ndarray, candidates: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """All inner products in float64, rounded to float32; ties by index."""
    own, other = queries.astype(np.float64), candidates.astype(np.float64, order="C")
    products = np.array([(row * other).sum(axis=1) for row in own], np.float32).reshape(len(own), len(other))
    order = np.argsort(-products, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(products, order, axis=1), order


def arrays_of(found: BothWays) -> list[np.ndarray]:
    return [getattr(found, name) for name in ARRAYS]


def assert_same(got: BothWays, expected: BothWays | list[np.ndarray]) -> None:
    for one, other in zip(
        arrays_of(got), arrays_of(expected) if isinstance(expected, BothWays) else expected, strict=True
    ):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_array_equal(one, other)


def two_searches(source: np.ndarray, target: np.ndarray, k: int) -> list[np.ndarray]:
    source, target = (np.asarray(side, np.float32) for side in (source, target))
    return [*naive(source, target, k), *naive(target, source, k)]


def mapped(path: Path, vectors: np.ndarray) -> np.memmap:
    np.save(path, vectors)
    return np.load(path, mmap_mode="r")


def clustered(seed: int, count: int) -> np.ndarray:
    centres = unit(100, 30, 24)
    vectors = centres[np.random.default_rng(seed).integers(0, 30, count)] + 0.8 * unit(seed, count, 24)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def use_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks and tiles in few vectors."""
    monkeypatch.setattr(block_search, "SIZES", dict.fromkeys(block_search.SIZES, ((96, 64),)))
    monkeypatch.setattr(block_search, "ROWS_SETTLED", 40)
    monkeypatch.setattr(tiles, "GROUPS_AT_ONCE", 50)
