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
from both_ways_helpers import ARRAYS, assert_same, clustered, mapped, two_searches, unit, use_small_blocks

from hf_xlsr.mining import neighbours_both_ways
from hf_xlsr.mining.search import block_search, storage, tiles
from hf_xlsr.utils.errors import XlsrError


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
    from hf_xlsr.mining import neighbours_both_ways
    from hf_xlsr.mining.search import block_search
    from hf_xlsr.mining.search import storage

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


def test_killed_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_small_blocks(monkeypatch)
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


def test_interrupted_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_small_blocks(monkeypatch)
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
    from hf_xlsr.utils.errors import XlsrError
    from hf_xlsr.utils.memory import parse_size
    from hf_xlsr.mining import extract_pairs, neighbours_both_ways
    from hf_xlsr.mining.search import tiles

    if sys.argv[3] == "float32":
        tiles.cpu_has_fast_bfloat16 = lambda: False
    source, target = (np.load(f"{sys.argv[1]}/{side}.npy", mmap_mode="r") for side in ("source", "target"))
    options = {"method": sys.argv[2], "cells": 8, "probes": 2}
    try:
        neighbours_both_ways(source, target, memory=10**8, **options)
    except XlsrError as error:
        needed = parse_size(re.search("needs ([0-9]+MB)", str(error))[1])
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
