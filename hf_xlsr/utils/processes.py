"""Work in parts over several processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver, get_all_start_methods, get_context, parent_process
from threading import Thread
from typing import Any, TypeVar

from tqdm.auto import tqdm

from hf_xlsr.utils.errors import XlsrError

Shard = TypeVar("Shard")
_work: Callable[[Any], None]


def run_shards(
    work: Callable[[Shard], None], shards: Iterable[Shard], *, num_proc: int = 1, description: str = ""
) -> None:
    """Calls `work` on every shard, in any order; in several processes, it must be picklable.

    `work` writes its result to a file, atomically, and returns at once where that file exists: so the same call resumes
    after a kill. Shards are worked on while the next ones are being made.
    """
    bar: dict[str, Any] = {"desc": description, "unit": "shard", "disable": None}
    if num_proc == 1:
        for shard in tqdm(shards, **bar):
            work(shard)
        return
    # A fork of this process would copy the locks of the threads of tokenizers and PyTorch.
    method = "forkserver" if "forkserver" in get_all_start_methods() else "spawn"
    with ProcessPoolExecutor(num_proc, get_context(method), _start, (work,)) as pool:
        try:
            for job in tqdm([pool.submit(_run, shard) for shard in shards], **bar):
                job.result()
        except BrokenProcessPool:
            raise XlsrError("a process was killed, often for lack of memory. Rerun with lower `num_proc`.") from None
        finally:
            pool.shutdown(cancel_futures=True)


def import_ahead(*modules: str) -> None:
    """Starts the server that workers are forked from. It imports `modules` while this process continues."""
    if "forkserver" in get_all_start_methods():
        forkserver.set_forkserver_preload(list(modules))
        forkserver.ensure_running()


def _start(work: Callable[[Any], None]) -> None:
    global _work
    _work = work
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this process with its parent, also a killed one, so that no two write one shard."""
    parent = parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _run(shard: Any) -> None:
    _work(shard)
