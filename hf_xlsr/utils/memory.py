"""Whether memory suffices, before an allocation fails or the process is killed for it; and memory that is kept."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from hf_xlsr.utils.errors import XlsrError

CONTROL_GROUP = Path("/sys/fs/cgroup")
# Settings of glibc's `mallopt`, and their defaults.
TRIM_THRESHOLD = -1
MOST_MAPPED_BLOCKS = -4
DEFAULT_TRIM_THRESHOLD = 128 * 1024
DEFAULT_MAPPED_BLOCKS = 65536
NEVER = -1
ALLOCATOR_VARIABLES = ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_")


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


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Lets the next allocation reuse freed memory, which goes back to the system at the end; on Linux with glibc.

    By default glibc maps every large block anew, and the kernel zeroes it page by page: a fifth of the time of a training
    step whose gradients are larger than its batches. Values do not change; the peak of memory grows by what is kept.
    Whoever sets one of glibc's own variables, such as `MALLOC_TRIM_THRESHOLD_`, keeps what it says.
    """
    if any(name in os.environ for name in ALLOCATOR_VARIABLES) or platform.libc_ver()[0] != "glibc":
        yield
        return

    libc = ctypes.CDLL(None)
    libc.mallopt(MOST_MAPPED_BLOCKS, 0)
    libc.mallopt(TRIM_THRESHOLD, NEVER)
    try:
        yield
    finally:
        libc.mallopt(MOST_MAPPED_BLOCKS, DEFAULT_MAPPED_BLOCKS)
        libc.mallopt(TRIM_THRESHOLD, DEFAULT_TRIM_THRESHOLD)
        libc.malloc_trim(0)
