"""Work folder of a mining job: inputs, finished stages, atomic writes."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import DTypeLike

from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import LEFTOVER, atomic_write, disk_errors, private_folder, remove_leftovers, write_json
from hf_xlsr.utils.seals import hashes_of, torn_file

logger = logging.getLogger(__name__)

JOB = "job.json"
STAGE = "stage.json"
LOCK = "lock"


class Stage:
    """A folder with the files of one stage and its state, a JSON file; without a path both are kept in memory."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._state: dict[str, Any] = {}

    @property
    def state(self) -> dict[str, Any]:
        """What was stored; empty at first."""
        if self.path is not None:
            return _read_json(self.path / STAGE)
        return self._state

    def update(self, **entries: Any) -> None:
        """Stores entries of the state beside the others."""
        self._state = self.state | entries
        if self.path is not None:
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / STAGE, self._state)

    @property
    def result(self) -> dict[str, Any] | None:
        """What `finish` stored; None while the stage is not finished."""
        return self.state.get("result")

    def finish(self, **result: Any) -> None:
        """Marks the stage as finished, with what it found."""
        files = {}
        if self.path is not None and self.path.is_dir():
            files = hashes_of(self.path, without=[STAGE])
        self.update(result=result, files=files)

    def torn_file(self) -> Path | None:
        """A file of the finished stage that is not as it was then; None if all are."""
        assert self.path is not None
        name = torn_file(self.path, self.state.get("files", {}))
        return None if name is None else self.path / name

    def restart(self, settings: Any) -> None:
        """Removes all files of the stage; it is then unfinished, for these settings."""
        assert self.path is not None
        if self.path.exists():
            # First: a stage that is half removed must not count as finished.
            (self.path / STAGE).unlink(missing_ok=True)
            shutil.rmtree(self.path)
        self.update(settings=settings)

    def inner(self, name: str) -> Stage:
        """A stage inside the folder, or in memory."""
        return Stage(None if self.path is None else self.path / name)

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """An array of zeros, or the one that an earlier process left in the folder under that name."""
        if self.path is None or 0 in shape:
            return np.zeros(shape, dtype)
        path = self.path / f"{name}.npy"
        if not path.exists():
            _create_array(path, shape, dtype)
        array: np.ndarray = np.load(path, mmap_mode="r+")
        return array

    def clear(self, keep: Collection[str]) -> None:
        """Removes all arrays in the folder but some, and all folders."""
        if self.path is None:
            return
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.suffix == ".npy" and path.stem not in keep:
                path.unlink()
        if self.result is not None:
            self.finish(**self.result)


class WorkFolder:
    """Folder of one job, with a `Stage` in each subfolder.

    A stage is finished for its settings, which include those of the stages before it and a hash of the job's inputs.
    When something changes, the stages that depend on it are removed, and the others stay.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(path))  # the folder of other processes may be another

    def stage(self, name: str) -> Stage:
        return Stage(self.path / name)

    @contextmanager
    def claim(
        self,
        kind: str,
        inputs: Mapping[str, Mapping[str, Any]],
        plan: Mapping[str, Any],
    ) -> Iterator[None]:
        """Locks the folder for a job, and removes the stages of other settings than those of the plan.

        A job none of whose finished stages would be lost is replaced.
        """
        job = self.path / JOB
        if self.path.is_file():
            raise XlsrError(f"Work folder {self.path} is a file. Choose another folder.")
        with disk_errors(self.path):
            private_folder(self.path)
        if not job.is_file() and any(not name.startswith((LOCK, LEFTOVER)) for name in os.listdir(self.path)):
            raise XlsrError(f"Work folder {self.path} holds other files. Choose another folder.")

        try:
            lock = FileLock(self.path / LOCK).acquire(timeout=0)
        except Timeout:
            raise XlsrError(f"Work folder {self.path} is in use by another process.") from None

        with lock:
            remove_leftovers(self.path, *[path for path in self.path.rglob("*") if path.is_dir()])
            self._check_job(kind, inputs, plan)
            if _read_json(job).get("kind") != kind:
                for name in self._names() - plan.keys():
                    shutil.rmtree(self.path / name)
            write_json(job, {"kind": kind, "inputs": inputs})
            for name, settings in plan.items():
                stage = self.stage(name)
                if self._is_of(name, settings):
                    torn = stage.torn_file()
                    if torn is None:
                        continue
                    logger.warning("'%s' is torn; its stage runs again.", torn)
                stage.restart(settings)

            yield

    def _check_job(
        self,
        kind: str,
        inputs: Mapping[str, Mapping[str, Any]],
        plan: Mapping[str, Any],
    ) -> None:
        """Refuses to remove finished stages of another job; a changed file is the same job."""
        old = _read_json(self.path / JOB)
        same_kind = old.get("kind", kind) == kind  # a torn file says nothing
        finished = [name for name in self._names() if self.stage(name).result is not None]
        if not finished or (same_kind and all(self._is_of(name, plan.get(name)) for name in finished)):
            return

        for side, new_input in inputs.items():
            old_input = old.get("inputs", {}).get(side, {})
            same_file = new_input["name"] is not None and new_input["name"] == old_input.get("name")
            same_content = new_input["sha256"] == old_input.get("sha256")
            if not same_kind or not (same_file or same_content):
                raise XlsrError(
                    f"Work folder {self.path} holds another job, with other sentences as {side}. Choose another folder "
                    "(--work), or remove that one."
                )

    def _names(self) -> set[str]:
        """The stages in the folder."""
        return {file.parent.name for file in self.path.glob(f"*/{STAGE}")}

    def _is_of(self, name: str, settings: Any) -> bool:
        """Whether a stage has these settings."""
        return settings is not None and self.stage(name).state.get("settings") == json.loads(json.dumps(settings))


def _create_array(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> None:
    """Writes a `.npy` file of zeros, and moves it into place when all its blocks are allocated."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial:
        np.lib.format.open_memmap(partial, "w+", dtype, shape)
        if hasattr(os, "posix_fallocate"):
            # A disk that fills up under a memory-mapped file kills the process: allocate all blocks now.
            with partial.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, partial.stat().st_size)


def save_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Writes an `.npz` file, and moves it into place when it is complete."""
    with atomic_write(path) as partial:
        write_arrays(partial, **arrays)


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Writes an `.npz` file, whatever the name of its path."""
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file, by name."""
    with np.load(path) as file:
        return dict(file)


def npy_header(shape: tuple[int, ...], dtype: DTypeLike) -> bytes:
    """What a `.npy` file begins with; the numbers of the array, row by row, follow."""
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    return header.getvalue()


def save_rows(
    path: Path,
    blocks: Iterable[np.ndarray],
    shape: tuple[int, ...],
    dtype: DTypeLike,
) -> None:
    """Writes a `.npy` file block by block, and moves it into place when it is complete.

    If the blocks have fewer rows than `shape`, so has the file.
    """
    rows = 0
    with atomic_write(path) as partial, partial.open("wb") as file:
        file.write(npy_header(shape, dtype))
        for block in blocks:
            file.write(block.astype(dtype, order="C", copy=False).tobytes())  # `tofile` hides that the disk is full
            rows += len(block)
        if rows != shape[0]:
            file.seek(0)
            file.write(npy_header((rows, *shape[1:]), dtype))  # numpy makes it as long as the first
        file.flush()
        os.fsync(file.fileno())


def _read_json(path: Path) -> dict[str, Any]:
    """The content; empty if the file is missing or unreadable, or holds something else."""
    content = None
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text("utf-8"))
    return content if isinstance(content, dict) else {}
