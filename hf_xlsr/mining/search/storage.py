"""Arrays of a search, in memory or in files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection

import numpy as np

from hf_xlsr.mining.work_folder import STAGE, Stage, disk_errors
from hf_xlsr.utils.files import atomic_write


class Workspace:
    """Where the arrays of a search are: kept in the stage's folder, in memory, or in unnamed temporary files."""

    def __init__(self, stage: Stage, in_files: bool) -> None:
        self.stage, self.in_files = stage, in_files
        if stage.path is not None:
            with disk_errors(stage.path):
                stage.path.mkdir(parents=True, exist_ok=True)

    def array(self, name: str, shape: tuple[int, ...], dtype: type, *, kept: bool = False) -> np.ndarray:
        """An array of zeros, or with `kept` the one that an earlier process left under that name."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        folder = self.stage.path if kept else None
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
        if self.stage.path is not None:
            for name in names:
                (self.stage.path / f"{name}.npy").unlink(missing_ok=True)

    def clear(self, keep: Collection[str]) -> None:
        """Removes all kept arrays but some."""
        if self.stage.path is not None:
            for path in self.stage.path.iterdir():
                if path.stem not in keep and path.name != STAGE:
                    path.unlink()


def _reserve(descriptor: int, size: int) -> None:
    """Allocates the blocks of a file now: a disk that fills up under a memory-mapped file kills the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)
