from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mining_fakes import (
    ARRAYS,
    Copies,
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
from hf_xlsr.mining.search import cells as search_cells
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.tasks import LocalPool

RESULT_FILES = {"stage.json", *(f"{name}.npy" for name in ARRAYS)}


def test_folder_keeps_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = unit(35, 200, 8)
    target = unit(36, 150, 8)
    neighbours = neighbours_both_ways(source, target, 3, folder=tmp_path)
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files == RESULT_FILES

    searches = []
    exact = block_search.BlockSearch.exact
    monkeypatch.setattr(block_search.BlockSearch, "exact", lambda *arguments: searches.append(exact(*arguments)))

    moved = mapped(tmp_path / "moved.npy", source)
    of_moved = neighbours_both_ways(moved, target, 3, folder=tmp_path)
    assert_same(of_moved, neighbours)
    assert not searches

    changed = source.copy()
    changed[7] = changed[8]
    for arguments in ((changed, target, 3), (source, target, 2), (target, source, 3)):
        assert_same(neighbours_both_ways(*arguments, folder=tmp_path), two_searches(*arguments))
    assert len(searches) == 3


@pytest.mark.parametrize(("method", "work"), [("exact", "_compared"), ("ivf", "_probed")])
def test_killed_and_resumed(method: str, work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_small_blocks(monkeypatch)
    source = mapped(tmp_path / "source.npy", clustered(37, 500).astype(np.float16))
    target = mapped(tmp_path / "target.npy", clustered(38, 400).astype(np.float16))
    run_span = getattr(block_search.BlockSearch, work)

    def search(folder: Path | None) -> BothWays:
        return neighbours_both_ways(source, target, 4, method=method, cells=8, probes=3, folder=folder)

    def killed() -> None:
        def killing(self: block_search.BlockSearch, *arguments: Any) -> Any:
            if arguments[-2] == 384:  # the third span of the sources
                os.kill(os.getpid(), signal.SIGKILL)
            return run_span(self, *arguments)

        setattr(block_search.BlockSearch, work, killing)
        search(tmp_path / "work")

    assert in_child(killed) == (-signal.SIGKILL, "")
    expected = search(None)
    spans: list[int] = []

    def noted(self: block_search.BlockSearch, *arguments: Any) -> Any:
        spans.append(arguments[-2])
        return run_span(self, *arguments)

    monkeypatch.setattr(block_search.BlockSearch, work, noted)
    assert_same(search(tmp_path / "work"), expected)
    assert spans[0] == 384
    (folder,) = (tmp_path / "work").iterdir()
    assert {path.name for path in folder.iterdir()} == RESULT_FILES


@pytest.mark.parametrize("method", ["exact", "ivf"])
def test_copies_of_the_work_find_what_one_process_does(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_small_blocks(monkeypatch)
    monkeypatch.setattr(search_cells, "TWO_LEVELS", 16)
    source = clustered(37, 500).astype(np.float16)
    source[20:29] = source[10]  # more copies than neighbours
    target = mapped(tmp_path / "target.npy", clustered(38, 400).astype(np.float16))
    options: dict[str, Any] = {"method": method, "cells": 16, "probes": 3, "recall": 0.8}

    runner = Copies()
    shared = neighbours_both_ways(source, target, 4, **options, folder=tmp_path / "work", runner=runner)

    alone = neighbours_both_ways(source, target, 4, **options)
    assert_same(shared, alone)
    assert shared.recall == alone.recall
    assert len(runner.finished) > 5
    (folder,) = (tmp_path / "work").iterdir()
    assert {path.name for path in folder.iterdir()} == RESULT_FILES


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", "ivf"])
def test_processes_find_what_one_does(method: str, tmp_path: Path):
    source = mapped(tmp_path / "source.npy", clustered(37, 9000))
    target = mapped(tmp_path / "target.npy", clustered(38, 7000))
    options: dict[str, Any] = {"method": method, "folder": tmp_path / "work"}
    shared = neighbours_both_ways(source, target, 4, **options, runner=LocalPool(2))
    options["folder"] = None
    assert_same(shared, neighbours_both_ways(source, target, 4, **options))


def test_machine_of_another_precision_is_refused(monkeypatch: pytest.MonkeyPatch):
    work = pickle.dumps(tiles.Filter())
    is_fast = tiles.cpu_has_fast_bfloat16()
    monkeypatch.setattr(tiles, "cpu_has_fast_bfloat16", lambda: not is_fast)
    with pytest.raises(XlsrError, match="one kind"):
        pickle.loads(work)


def test_several_processes_need_a_folder():
    with pytest.raises(XlsrError, match="`folder`"):
        neighbours_both_ways(np.eye(3), np.eye(3), runner=LocalPool(2))


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
