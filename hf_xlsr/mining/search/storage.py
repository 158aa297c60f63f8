"""Arrays of a search in memory or in files, and how much memory the process has resident."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hf_xlsr.mining.work_folder import disk_errors
from hf_xlsr.utils.files import atomic_write

SCATTERED_ROWS_AT_ONCE = 16


def resident_bytes() -> int:
    """Memory that the process has resident now, its libraries included."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:  # no such file outside Linux: the highest so far stands in
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def available_bytes() -> int:
    """Memory that the machine can still give."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE


def drop_pages(array: np.ndarray) -> None:
    """Lets go of the resident pages of a memory-mapped array; its content stays. Does nothing to other arrays."""
    mapping = _mapping(array)
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def scattered(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Some rows of an array. Those of a mapped one are read few at a time: each makes up to 2 MiB resident around."""
    mapping = _mapping(array)
    if mapping is None:
        return array[rows]
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        # Large pages of the page cache would be mapped whole.
        with suppress(OSError):  # of kernels without such pages
            mapping.madvise(mmap.MADV_NOHUGEPAGE)
    taken = np.empty((len(rows), *array.shape[1:]), array.dtype)
    for start in range(0, len(rows), SCATTERED_ROWS_AT_ONCE):
        part = slice(start, start + SCATTERED_ROWS_AT_ONCE)
        taken[part] = array[rows[part]]
        drop_pages(array)
    return taken


def trim() -> None:
    """Gives freed memory back to the system, where the C library keeps it and can be asked to."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if give_back is not None:
        give_back(0)


def is_mapped(array: np.ndarray) -> bool:
    """Whether `drop_pages` can let go of an array's memory."""
    return _mapping(array) is not None


def _mapping(array: np.ndarray) -> mmap.mmap | None:
    layer: Any = array
    shared = False
    while isinstance(layer, np.ndarray):
        # A copy-on-write mapping would lose what was written to it.
        shared = shared or (isinstance(layer, np.memmap) and layer.mode != "c")
        layer = layer.base
    return layer if shared and isinstance(layer, mmap.mmap) else None


class Workspace:
    """Where the arrays of a search lie.

    Args:
        folder: For what a later process goes on from; None keeps nothing.
        in_files: What is not kept in `folder` lies in nameless temporary files, which vanish with their last use.
    """

    def __init__(self, folder: Path | None, in_files: bool) -> None:
        self.folder, self.in_files = folder, in_files
        if folder is not None:
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)

    def array(self, name: str, shape: tuple[int, ...], dtype: type, *, kept: bool = False) -> np.ndarray:
        """An array of zeros, or with `kept` what an earlier process left under that name.

        Raises:
            XlsrError: there is no room on the disk.
        """
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        folder = self.folder if kept else None
        if not size or (folder is None and not self.in_files):
            return np.zeros(shape, dtype)
        if folder is None:
            with disk_errors(tempfile.gettempdir()), tempfile.TemporaryFile() as file:
                _reserve(file.fileno(), size)
                return np.memmap(file, dtype, "r+", shape=shape)
        path = folder / f"{name}.npy"
        if not path.exists():
            with disk_errors(path), atomic_write(path) as partial:
                np.lib.format.open_memmap(partial, "w+", dtype, shape)
                with partial.open("r+b") as file:
                    _reserve(file.fileno(), partial.stat().st_size)
        return np.load(path, mmap_mode="r+")

    def remove(self, *names: str) -> None:
        """Removes kept arrays."""
        if self.folder is not None:
            for name in names:
                (self.folder / f"{name}.npy").unlink(missing_ok=True)

    def clear(self, keep: Collection[str]) -> None:
        """Removes all files of the folder but some."""
        if self.folder is not None:
            for path in self.folder.iterdir():
                if path.name not in keep:
                    path.unlink()

    def note(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes a note to the folder, at once or not at all."""
        if self.folder is None:
            return
        with disk_errors(self.folder), atomic_write(self.folder / name) as partial:
            partial.write_text(json.dumps(content), "utf-8")

    def noted(self, name: str) -> dict[str, Any]:
        """What was noted under a name; empty when nothing was."""
        if self.folder is None or not (self.folder / name).exists():
            return {}
        return json.loads((self.folder / name).read_text("utf-8"))


def _reserve(descriptor: int, size: int) -> None:
    """Takes the room now: a disk that fills up under a memory-mapped file kills the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)
