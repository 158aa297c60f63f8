"""Whether memory suffices, before an allocation fails or the process is killed for it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import psutil

from hf_xlsr.utils.errors import XlsrError

CONTROL_GROUP = Path("/sys/fs/cgroup")


def free_memory() -> int:
    """Bytes that this process may still take: of the machine, of its control group, and of `ulimit -v`."""
    limits: list[int] = [psutil.virtual_memory().available + psutil.swap_memory().free]
    with suppress(OSError, ValueError, AttributeError):
        limit = int((CONTROL_GROUP / "memory.max").read_text())  # `max` without a limit
        statistics = (CONTROL_GROUP / "memory.stat").read_text()
        used = re.search(r"^anon (\d+)$", statistics, re.MULTILINE)
        limits.append(limit - int(used[1]))  # type: ignore[index]
    with suppress(ImportError):  # not on Windows
        import resource

        address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
        if address_space != resource.RLIM_INFINITY:
            limits.append(address_space - psutil.Process().memory_info().vms)
    return max(0, min(limits))


def require_memory(what: str, size: int) -> None:
    """Raises if `what`, in words, takes more bytes than are free."""
    free = free_memory()
    if size > free:
        raise XlsrError(f"{what} needs about {size / 1e9:.1f} GB of memory, but {free / 1e9:.1f} GB are free.")


def require_memory_for_weights(path: str | os.PathLike[str]) -> None:
    """Raises if the weights of a model are larger than the free memory; an id on the Hub passes."""
    sizes = [file.stat().st_size for file in Path(path).glob("**/*.safetensors")]
    if sizes:
        require_memory(f"Model '{os.fspath(path)}'", max(sizes))
