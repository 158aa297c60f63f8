from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mining_fakes import (
    ARRAYS,
    arrays_of,
    assert_same,
    clustered,
    in_child,
    mapped,
    two_searches,
    unit,
    use_small_blocks,
)

from hf_xlsr.mining import BothWays, neighbours_both_ways
from hf_xlsr.mining.search import block_search, tiles
from hf_xlsr.mining.work_folder import Stage
from hf_xlsr.utils.errors import XlsrError

RESULT_FILES = {"stage.json", *(f"{name}.npy" for name in ARRAYS)}


def test_folder_keeps_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = unit(35, 200, 8)
    target = unit(36, 150, 8)
    neighbours = neighbours_both_ways(source, target, 3, folder=tmp_path)
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files == RESULT_FILES

    searches = []
    exact = block_search.BlockSearch.exact
    monkeypatch.setattr(block_search.BlockSearch, "exact", lambda self, results: searches.append(exact(self, results)))

    moved = mapped(tmp_path / "moved.npy", source)
    of_moved = neighbours_both_ways(moved, target, 3, folder=tmp_path)
    assert_same(of_moved, neighbours)
    assert not searches

    changed = source.copy()
    changed[7] = changed[8]
    for arguments in ((changed, target, 3), (source, target, 2), (target, source, 3)):
        assert_same(neighbours_both_ways(*arguments, folder=tmp_path), two_searches(*arguments))
    assert len(searches) == 3


@pytest.mark.parametrize(
    # The third block of sources; of cells, after the layouts of both sides and three blocks.
    ("method", "count", "when", "resumed_at"),
    [("exact", 3, "before", 192), ("ivf", 6, "after", 288)],
)
def test_killed_and_resumed(
    method: str, count: int, when: str, resumed_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    use_small_blocks(monkeypatch)
    source = mapped(tmp_path / "source.npy", clustered(37, 500).astype(np.float16))
    target = mapped(tmp_path / "target.npy", clustered(38, 400).astype(np.float16))
    update = Stage.update
    finish = block_search.BlockSearch._finish

    def search(folder: Path | None) -> BothWays:
        return neighbours_both_ways(source, target, 4, method=method, cells=8, probes=3, folder=folder)

    def killed() -> None:
        left = [count]

        def counted(self: Stage, **entries: object) -> None:
            left[0] -= 1
            if left[0] == 0 and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            update(self, **entries)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        Stage.update = counted  # type: ignore[method-assign]
        search(tmp_path)

    assert in_child(killed) == (-signal.SIGKILL, "")
    expected = search(None)
    finished: list[int] = []

    def noted(self: block_search.BlockSearch, *arguments, **options) -> None:  # type: ignore[no-untyped-def]
        finished.append(arguments[3])
        finish(self, *arguments, **options)

    monkeypatch.setattr(block_search.BlockSearch, "_finish", noted)
    assert_same(search(tmp_path), expected)
    assert finished[0] == resumed_at


@pytest.mark.sample(2)
@pytest.mark.parametrize("method", ["exact", "ivf"])
@pytest.mark.parametrize("victim", [None, 0, 1])
def test_two_processes_find_what_one_does(
    method: str, victim: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    use_small_blocks(monkeypatch)
    source = mapped(tmp_path / "source.npy", clustered(37, 500).astype(np.float16))
    target = mapped(tmp_path / "target.npy", clustered(38, 400).astype(np.float16))
    options: dict[str, Any] = {"method": method, "cells": 8, "probes": 3}
    context = multiprocessing.get_context("fork")
    save = block_search.BlockSearch._save

    def work(index: int, kill: bool) -> None:
        def saving(self: block_search.BlockSearch, name: str, **parts: Any) -> None:
            if kill and (self.index == 0 or name != "0-96"):  # the second process saves one block first
                os.kill(os.getpid(), signal.SIGKILL)
            save(self, name, **parts)

        monkeypatch.setattr(block_search.BlockSearch, "_save", saving)
        if index:  # less memory: the blocks are those of the first process
            monkeypatch.setattr(block_search, "SIZES", dict.fromkeys(block_search.SIZES, ((64, 64),)))
        neighbours = neighbours_both_ways(source, target, 4, **options, folder=tmp_path / "work", process=(index, 2))
        np.savez(tmp_path / f"{index}.npz", *arrays_of(neighbours))

    def started(victim: int | None = None) -> list[Any]:
        processes = [context.Process(target=work, args=(index, index == victim)) for index in range(2)]
        for process in processes:
            process.start()
        return processes

    if victim is not None:
        processes = started(victim)
        killed = processes.pop(victim)
        killed.join(60)
        assert killed.exitcode == -signal.SIGKILL

        (survivor,) = processes
        time.sleep(0.5)  # it waits; a launcher would end it
        assert survivor.is_alive()
        survivor.kill()
        survivor.join(60)

    for process in started():
        process.join(60)
        assert process.exitcode == 0
    expected = neighbours_both_ways(source, target, 4, **options)
    for index in range(2):
        with np.load(tmp_path / f"{index}.npz") as arrays:
            assert_same(expected, list(arrays.values()))
    (folder,) = (tmp_path / "work").iterdir()
    assert {path.name for path in folder.iterdir()} == RESULT_FILES


def test_processes_of_two_precisions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    vectors = mapped(tmp_path / "vectors.npy", unit(1, 100, 16))
    options: dict[str, Any] = {"folder": tmp_path / "work"}
    first = multiprocessing.get_context("fork").Process(
        target=lambda: neighbours_both_ways(vectors, vectors, **options, process=(0, 2))
    )
    first.start()
    is_fast = tiles.cpu_has_fast_bfloat16()
    monkeypatch.setattr(tiles, "cpu_has_fast_bfloat16", lambda: not is_fast)
    try:
        with pytest.raises(XlsrError, match="one kind"):
            neighbours_both_ways(vectors, vectors, **options, process=(1, 2))
    finally:
        first.kill()
        first.join(60)


MEASURED = """
    import os, re, sys, threading, time
    import numpy as np
    from hf_xlsr.utils.errors import XlsrError
    from hf_xlsr.mining import neighbours_both_ways

    def anonymous():
        status = open("/proc/self/status").read()
        return 1024 * int(re.search("RssAnon:\\\\s+([0-9]+)", status)[1])

    source, target = (np.load(f"{sys.argv[1]}/{side}.npy", mmap_mode="r") for side in ("source", "target"))
    options = {"method": sys.argv[2], "cells": 8, "probes": 2, "folder": sys.argv[1]}
    neighbours_both_ways(source[:600], target[:600], **options)  # libraries allocate at their first use
    try:
        neighbours_both_ways(source, target, memory=1, **options)
    except XlsrError as error:
        needed = 10**6 * int(re.search("([0-9]+)MB", str(error))[1])
    before, peak, done = anonymous(), [0], threading.Event()

    def watch():
        while not done.is_set():
            peak[0] = max(peak[0], anonymous())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    neighbours_both_ways(source, target, memory=needed, **options)
    done.set()
    watcher.join()
    print(needed, peak[0] - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux")
@pytest.mark.parametrize("method", ["exact", "ivf"])
def test_smallest_budget_is_kept(method: str, tmp_path: Path):
    some = unit(0, 2000, 1024)
    for name, rows in (("source", 2000), ("target", 40_000)):
        vectors = np.lib.format.open_memmap(tmp_path / f"{name}.npy", "w+", np.float16, (rows, 1024))
        for start in range(0, rows, 2000):
            vectors[start : start + 2000] = np.roll(some, start // 2000, axis=1)
    command = [sys.executable, "-c", textwrap.dedent(MEASURED), str(tmp_path), method]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "MALLOC_ARENA_MAX": "1"}
    )
    needed, peak = map(int, done.stdout.split())
    assert peak <= 1.2 * needed + 10_000_000, (needed, peak)  # the allocator keeps some
    assert needed < 40_000_000  # 84 MB of vectors in files


def test_too_small_a_budget_names_what_suffices():
    vectors = unit(1, 3000, 64)
    with pytest.raises(XlsrError, match="memory") as caught:
        neighbours_both_ways(vectors, vectors, memory=1000)

    megabytes = re.findall(r"(\d+)MB", str(caught.value))[0]
    within_budget = neighbours_both_ways(vectors, vectors, memory=int(megabytes) * 10**6)
    assert_same(within_budget, neighbours_both_ways(vectors, vectors))
