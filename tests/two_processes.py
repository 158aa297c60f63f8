"""Two processes of a launch, which a fork server makes: they do not import torch and transformers again."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forked_command import SERVER, start_workers_by_fork


def _process(function: Callable[..., None], arguments: tuple[Any, ...], rank: int, port: int, log: Path) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        CUDA_VISIBLE_DEVICES="",
    )
    start_workers_by_fork()
    status = 1
    try:
        function(*arguments)
        status = 0
    except BaseException:
        log.write_text(traceback.format_exc(), "utf-8")
    os._exit(status)  # torch may deadlock over the GIL when a DDP model is freed after its gloo group


def run_on_two_processes(function: Callable[..., None], *arguments: Any, folder: Path, seconds: float = 200) -> None:
    """Calls a function of a module in both processes; the traceback of one that fails goes to `folder`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    logs = [folder / "process-0.txt", folder / "process-1.txt"]
    processes = []
    for rank, log in enumerate(logs):
        process = SERVER.Process(target=_process, args=(function, arguments, rank, port, log))
        process.start()
        processes.append(process)

    try:
        for process in processes:
            process.join(seconds)
        statuses = [process.exitcode for process in processes]
        tracebacks = [log.read_text("utf-8") for log in logs if log.is_file()]
        assert statuses == [0, 0], "\n".join(tracebacks) or statuses
    finally:
        for process in processes:
            process.kill()
