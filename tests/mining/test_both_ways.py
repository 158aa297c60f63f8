from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.errors import XlsrError
from hf_xlsr.mining import BothWays, block_search, both_ways, nearest_neighbours, neighbours_both_ways, storage, tiles

ARRAYS = ("forward_similarities", "forward_indices", "backward_similarities", "backward_indices")


def unit(seed: int, count: int, width: int, offset: float = 0.0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, width)) + offset
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def naive(queries: np.ndarray, candidates: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """All inner products in float64, seen at float32's precision; equal ones by index."""
    products = (queries.astype(np.float64) @ candidates.astype(np.float64).T).astype(np.float32)
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
    return [*nearest_neighbours(source, target, k), *nearest_neighbours(target, source, k)]


@pytest.fixture(params=["float32", "bfloat16"])
def precision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the first pass multiplies; the bound on bfloat16 holds where the processor computes more exactly, too."""
    monkeypatch.setattr(tiles, "cpu_has_fast_bfloat16", lambda: request.param == "bfloat16")
    return request.param


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks and tiles in few vectors."""
    monkeypatch.setattr(block_search, "SIZES", dict.fromkeys(block_search.SIZES, ((96, 64),)))
    monkeypatch.setattr(block_search, "ROWS_SETTLED", 40)
    monkeypatch.setattr(tiles, "GROUPS_AT_ONCE", 50)


@pytest.mark.parametrize(("count", "other", "k"), [(1, 1, 1), (1, 40, 4), (70, 3, 5), (900, 1300, 4), (300, 5000, 11)])
def test_exact_equals_two_searches(count: int, other: int, k: int, precision: str):
    source, target = unit(0, count, 48), unit(1, other, 48)
    found = neighbours_both_ways(source, target, k)
    assert (found.method, found.recall) == ("exact", 1.0)
    assert_same(found, two_searches(source, target, k))


@pytest.mark.usefixtures("small_blocks")
def test_blocks_change_nothing(precision: str):
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
    monkeypatch.setattr("hf_xlsr.mining.vectors.np.random.default_rng", lambda seed: Constant())
    assert_same(neighbours_both_ways(source, target, 4), expected)


def mapped(path: Path, vectors: np.ndarray) -> np.memmap:
    np.save(path, vectors)
    return np.load(path, mmap_mode="r")


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


def clustered(seed: int, count: int) -> np.ndarray:
    centres = unit(100, 30, 24)
    vectors = centres[np.random.default_rng(seed).integers(0, 30, count)] + 0.8 * unit(seed, count, 24)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


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


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]):
    neighbours_both_ways(unit(33, 60, 8), unit(34, 50, 8), show_progress_bar=True)
    assert re.search(r"neighbours: 100%.*60\.0/60\.0.* rows/s", capsys.readouterr().err)
    neighbours_both_ways(unit(33, 60, 8), unit(34, 50, 8))
    assert not capsys.readouterr().err


def test_a_folder_gives_the_result_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source, target = unit(35, 200, 8), unit(36, 150, 8)
    found = neighbours_both_ways(source, target, 3, folder=tmp_path)
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"done", *(f"{name}.npy" for name in ARRAYS)}
    searches = []
    exact = block_search.BlockSearch.exact
    monkeypatch.setattr(block_search.BlockSearch, "exact", lambda self: searches.append(exact(self)))
    assert_same(neighbours_both_ways(source.copy(), target, 3, folder=tmp_path), found)
    assert not searches
    changed = source.copy()
    changed[7] = changed[8]
    for arguments in ((changed, target, 3), (source, target, 2), (target, source, 3)):
        assert_same(neighbours_both_ways(*arguments, folder=tmp_path), two_searches(*arguments))
    assert len(searches) == 3


def in_forks(code: str, *calls: tuple[object, ...]) -> list[tuple[int, str]]:
    """Runs a function `job` once for each call, each in a process of its own: how it ended, and what it printed.

    The processes are forked from one that has imported everything and computed nothing.
    """
    start = """
        import os, sys
        calls = {calls}
        for arguments in calls:
            sys.stdout.flush()
            if not os.fork():
                job(*arguments)
                sys.stdout.flush()
                os._exit(0)
            print(chr(30), os.waitstatus_to_exitcode(os.wait()[1]), end=chr(31))
    """
    script = textwrap.dedent(code) + textwrap.dedent(start).format(calls=[tuple(map(str, call)) for call in calls])
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    parts = [part.split(chr(30)) for part in printed.split(chr(31))[:-1]]
    return [(int(ended), text) for text, ended in parts]


# The process kills itself when it notes its progress for the n-th time: just before, or just after.
KILLED = """
    import os, signal
    import numpy as np
    import hf_xlsr
    from hf_xlsr.mining import block_search, neighbours_both_ways, storage

    block_search.SIZES = dict.fromkeys(block_search.SIZES, ((96, 64),))
    note = storage.Workspace.note

    def job(folder, method, count, when):
        left = [int(count)]

        def counted(self, name, content):
            left[0] -= 1
            if left[0] == 0 and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            note(self, name, content)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        storage.Workspace.note = counted
        source, target = (np.load(f"{folder}/{side}.npy", mmap_mode="r") for side in ("source", "target"))
        neighbours_both_ways(source, target, 4, method=method, cells=8, probes=3, folder=folder)
"""


def test_killed_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None):
    source = mapped(tmp_path / "source.npy", clustered(37, 500).astype(np.float16))
    target = mapped(tmp_path / "target.npy", clustered(38, 400).astype(np.float16))
    # Two blocks of sources were noted; of cells, the layouts of both sides and three blocks.
    cases = {"exact": (3, "before", 192), "ivf": (5, "after", 288)}
    ends = in_forks(KILLED, *((tmp_path, method, count, when) for method, (count, when, _) in cases.items()))
    assert [ended for ended, _ in ends] == [-signal.SIGKILL] * 2
    finish = block_search.BlockSearch._finish
    for method, (_, _, resumed_at) in cases.items():
        expected = neighbours_both_ways(source, target, 4, method=method, cells=8, probes=3)
        finished: list[int] = []

        def noted(self: block_search.BlockSearch, *given, **options) -> None:  # type: ignore[no-untyped-def]
            finished.append(given[2])  # noqa: B023
            finish(self, *given, **options)

        with monkeypatch.context() as patch:
            patch.setattr(block_search.BlockSearch, "_finish", noted)
            found = neighbours_both_ways(source, target, 4, method=method, cells=8, probes=3, folder=tmp_path)
        assert_same(found, expected)
        assert finished[0] == resumed_at


def test_interrupted_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None):
    source, target = unit(39, 400, 8), unit(40, 300, 8)
    keep = block_search.BlockSearch._keep

    def interrupted(self: block_search.BlockSearch, columns: tiles.Best, done: int) -> None:
        keep(self, columns, done)
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(block_search.BlockSearch, "_keep", interrupted)
            neighbours_both_ways(source, target, folder=tmp_path)
    folder = next(tmp_path.iterdir())
    assert storage.Workspace(folder, False).noted("progress") == {"exact": 192}
    assert_same(neighbours_both_ways(source, target, folder=tmp_path), two_searches(source, target, 4))


def test_a_full_disk_is_said_in_one_sentence(tmp_path: Path):
    vectors = unit(41, 2000, 4)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limit[1]))
    try:
        with pytest.raises(XlsrError, match="is full, or a limit on file size is reached"):
            neighbours_both_ways(vectors, vectors, folder=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert_same(neighbours_both_ways(vectors, vectors, folder=tmp_path), two_searches(vectors, vectors, 4))


MEASURED = """
    import re, sys
    import numpy as np
    import hf_xlsr
    from hf_xlsr.errors import XlsrError
    from hf_xlsr.memory import parse_size
    from hf_xlsr.mining import extract_pairs, neighbours_both_ways, tiles

    if sys.argv[3] == "float32":
        tiles.cpu_has_fast_bfloat16 = lambda: False
    source, target = (np.load(f"{sys.argv[1]}/{side}.npy", mmap_mode="r") for side in ("source", "target"))
    options = {"method": sys.argv[2], "cells": 8, "probes": 2}
    try:
        neighbours_both_ways(source, target, memory=10**8, **options)
    except XlsrError as error:
        needed = parse_size(re.search("needs ([0-9.]+ MB)", str(error))[1]) + 100_000
    extract_pairs(neighbours_both_ways(source, target, memory=needed, **options))
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(needed, int(peak.split()[1]) * 1024)
"""


@pytest.fixture(scope="module")
def large_sides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mapped sides, of which the targets alone are larger than what the smallest budget leaves."""
    folder = tmp_path_factory.mktemp("sides")
    some = unit(0, 2000, 1024)
    for name, rows in (("source", 2000), ("target", 40_000)):
        vectors = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float16, (rows, 1024))
        for start in range(0, rows, 2000):
            vectors[start : start + 2000] = np.roll(some, start // 2000, axis=1)
    return folder


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux")
@pytest.mark.parametrize("method", ["exact", "ivf"])
@pytest.mark.parametrize("products", ["the processor's", "float32"])
def test_too_little_memory_is_refused_and_enough_is_kept(large_sides: Path, method: str, products: str):
    """The smallest budget that the refusal names is accepted, and the process stays below it."""
    command = [sys.executable, "-c", textwrap.dedent(MEASURED), str(large_sides), method, products]
    needed, peak = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert peak <= needed
