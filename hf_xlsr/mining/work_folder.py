"""The folder of a mining job: what it is of, which stages are done, and writing that a full disk cannot spoil."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import DTypeLike

from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import atomic_write

JOB, STAGE, LOCK = "job.json", "stage.json", "lock"
FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
WRONG_PLACE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG}
SECONDS_BETWEEN_LOOKS = 0.1


class WorkFolder:
    """One job's stages, each in a folder of its own with a `stage.json`.

    A stage is done for its settings, which hold those of the stages before it and a hash of the job's inputs: when
    something changes, the stages that it touches are removed, and the others stay.

    Args:
        path: The folder; made by `claim`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @contextmanager
    def claim(self, kind: str, inputs: Mapping[str, Mapping[str, Any]], stages: Mapping[str, Any]) -> Iterator[None]:
        """Takes the folder for a job while the context lasts, and removes what was made with other settings.

        Args:
            kind: What the job does, e.g. `mine`.
            inputs: By side, `name` (None without a file) and `sha256`.
            stages: Settings by stage.

        A job that has nothing done which this one would remove gives way to it.

        Raises:
            XlsrError: the folder holds another job or other files, or is in use.
        """
        self._refuse_other_files()
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise XlsrError(
                f"work folder {self.path} is in use by another process; wait for it, or choose another folder."
            ) from None
        try:
            self._refuse_another_job(kind, inputs, stages)
            if _read_json(self.path / JOB).get("kind") != kind:
                for stage in self._stages_there() - stages.keys():
                    shutil.rmtree(self.path / stage)
            _write_json(self.path / JOB, {"kind": kind, "inputs": inputs})
            for stage, settings in stages.items():
                if not self._is_of(stage, stages):
                    # The note goes first: a stage that is half removed must not count as done.
                    (self.path / stage / STAGE).unlink(missing_ok=True)
                    if (self.path / stage).exists():
                        shutil.rmtree(self.path / stage)
                    (self.path / stage).mkdir()
                    _write_json(self.path / stage / STAGE, {"settings": settings, "done": False})
            yield
        finally:
            lock.release()

    def _refuse_other_files(self) -> None:
        if (self.path / JOB).is_file() or not self.path.exists():
            return
        if not self.path.is_dir() or {path.name for path in self.path.iterdir()} - {LOCK}:
            raise XlsrError(f"work folder {self.path} is taken by other files; choose another.")

    def _refuse_another_job(
        self, kind: str, inputs: Mapping[str, Mapping[str, Any]], stages: Mapping[str, Any]
    ) -> None:
        there = _read_json(self.path / JOB)
        done = {stage for stage in self._stages_there() if self.result(stage) is not None}
        if not done or (there.get("kind") == kind and all(self._is_of(stage, stages) for stage in done)):
            return
        for side, given in inputs.items():
            old = there.get("inputs", {}).get(side, {})
            same_file = given["name"] is not None and old.get("name") == given["name"]
            if there.get("kind") != kind or not (same_file or old.get("sha256") == given["sha256"]):
                raise XlsrError(
                    f"work folder {self.path} holds another job, with {old.get('name') or 'other sentences'} as {side}; "
                    "choose another folder (--work), or remove that one."
                )

    def _stages_there(self) -> set[str]:
        return {file.parent.name for file in self.path.glob(f"*/{STAGE}")}

    def _is_of(self, stage: str, stages: Mapping[str, Any]) -> bool:
        settings = stages.get(stage)
        return settings is not None and self._manifest(stage).get("settings") == json.loads(json.dumps(settings))

    def _manifest(self, stage: str) -> dict[str, Any]:
        return _read_json(self.path / stage / STAGE)

    def result(self, stage: str) -> dict[str, Any] | None:
        """What `finish` noted of a stage; None while it is not done."""
        manifest = self._manifest(stage)
        return manifest.get("result", {}) if manifest.get("done") else None

    def finish(self, stage: str, result: Mapping[str, Any] | None = None) -> None:
        """Notes that a stage is done, with what is worth knowing of it."""
        manifest = {**self._manifest(stage), "done": True, "result": dict(result or {})}
        _write_json(self.path / stage / STAGE, manifest)

    def wait_for(self, stage: str) -> dict[str, Any]:
        """Waits until another process has done a stage; gives its result."""
        while (result := self.result(stage)) is None:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return result


@contextmanager
def disk_errors(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Makes one sentence of what goes wrong when files are written.

    Raises:
        XlsrError: the disk is full, a limit on the size of files is reached, or the folder cannot be written to.
    """
    try:
        yield
    except OSError as error:
        # NumPy's own writing reports a short write without a number.
        if error.errno in FULL or "written" in str(error):
            raise XlsrError(
                f"the disk that holds {folder} is full, or a limit on file size is reached; what was finished is kept: "
                "make room, then give the same command again."
            ) from error
        if error.errno in WRONG_PLACE or (error.errno == errno.ENOENT and _on_one_path(error.filename, folder)):
            # What exists is only in the way where it is no folder.
            reason = os.strerror(errno.ENOTDIR) if error.errno == errno.EEXIST else error.strerror
            where = f": {error.filename}" if error.filename and str(error.filename) != str(folder) else ""
            raise XlsrError(f"{folder} cannot be written ({reason}{where}); choose another place.") from error
        raise


def _on_one_path(file: Any, folder: str | os.PathLike[str]) -> bool:
    """Whether what is missing lies below the folder or above it; another file's absence is another matter."""
    one, other = (os.path.abspath(os.fsdecode(path)) if path else None for path in (file, folder))
    return one is not None and other is not None and (one.startswith(other) or other.startswith(one))


def save_array(path: Path, array: np.ndarray) -> None:
    """Writes a `.npy` file, see `save_rows`."""
    save_rows(path, [array], array.shape, array.dtype)


def save_rows(path: Path, blocks: Iterable[np.ndarray], shape: tuple[int, ...], dtype: DTypeLike) -> None:
    """Writes a `.npy` file block by block beside, and moves it into place."""
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            # Not `tofile`, whose error does not tell that the disk is full.
            file.write(block.astype(dtype, order="C", copy=False).tobytes())


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with atomic_write(path) as partial:
        partial.write_text(json.dumps(content, indent=1, ensure_ascii=False), "utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    """The content; empty when there is no such file, or none that can be read."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
