"""Atomic writes of files and folders, full disks, and checks of places to write to."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf_xlsr.utils.errors import XlsrError

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
# What safetensors and tokenizers, numpy, and torch say of it.
FULL_MESSAGES = re.compile(
    r"No space left|File too large|\d requested and \d+ written|unexpected pos \d|iostream error"
)
OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)


def is_full(error: BaseException) -> bool:
    """Whether an error, or one behind it, says that a disk is full or a limit on file size is reached."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, XlsrError):
        if getattr(inner, "errno", None) in FULL or FULL_MESSAGES.search(str(inner)):
            return True
        inner = inner.__cause__ or inner.__context__
    return False


@contextmanager
def disk_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns a full disk into an error that names the path."""
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        raise XlsrError(
            f"'{os.fspath(path)}' cannot be written: the disk is full, or a limit on file size is reached. Make room and "
            "run the same command again."
        ) from error


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a pipe or a device, such as a terminal."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path to write to, which is moved to `path` at the end.

    A reader finds the old content or the new, even after a stop. Of a symbolic link, the target is replaced. A pipe or a
    device, such as `/dev/stdout`, receives the bytes at the end.

    Raises:
        XlsrError: The disk is full.
    """
    with disk_errors(path), _partial_file(path) as partial:
        yield partial


@contextmanager
def _partial_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    if is_stream(path):
        with tempfile.TemporaryDirectory() as folder:
            # Some writers seek, or take the format from the name.
            partial = Path(folder) / Path(path).name
            yield partial
            with partial.open("rb") as source, open(path, "wb") as stream:
                shutil.copyfileobj(source, stream)
        return

    file = Path(os.path.realpath(path) if os.path.islink(path) else path)
    partial = file.with_name(file.name + ".partial")
    try:
        yield partial
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | os.PathLike[str], *, merge: bool = False) -> Iterator[Path]:
    """A new folder to fill beside `path`, which takes its name at the end; nothing is left of it after an error.

    Args:
        path: Missing or an empty folder, also at the end: of two calls at once, one wins. Of a symbolic link, the target.
        merge: Instead of that, move each file into a folder that holds others, which stay.

    Raises:
        XlsrError: The folder has been filled meanwhile, or the disk is full.
    """
    folder = Path(os.path.realpath(path))
    with disk_errors(path):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as private:
            # A folder of its own has the usual permissions.
            partial = Path(private) / folder.name
            partial.mkdir()
            yield partial
            try:
                partial.rename(folder)
            except OSError as error:
                if error.errno not in OCCUPIED:
                    raise
                if not merge:
                    raise XlsrError(f"'{path}' was filled by another command. Choose another folder.") from error
                _move_files(partial, folder)


def _move_files(source: Path, target: Path) -> None:
    """Moves each file to its place in another folder, where it replaces an older one."""
    for file in sorted(source.rglob("*")):
        place = target / file.relative_to(source)
        if file.is_dir():
            place.mkdir(exist_ok=True)
        else:
            file.replace(place)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with atomic_write(path) as partial:
        partial.write_text(text, "utf-8")


def copy_file(source: Path, path: str | os.PathLike[str]) -> None:
    with atomic_write(path) as partial:
        shutil.copyfile(source, partial)


def read_json(path: str | os.PathLike[str]) -> Any:
    return json.loads(Path(path).read_text("utf-8"))


def torn_json(folder: str | os.PathLike[str]) -> Path | None:
    """The first JSON file in a folder that is not JSON, to name it in an error."""
    for file in sorted(Path(folder).rglob("*.json")):
        try:
            read_json(file)
        except ValueError:
            return file
    return None


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False))


def check_writable(
    path: str | os.PathLike[str],
    option: str,
    *,
    folder: bool = False,
) -> None:
    """Raises if a file or folder cannot be written to a place, before hours of work; nothing is created."""
    stream = not folder and is_stream(path)
    target = Path(path) if folder or stream else Path(path).parent
    # The nearest existing parent: the rest is created. (`Path.exists` raises in a locked folder.)
    while not os.path.exists(target) and target != target.parent:
        target = target.parent

    if not folder and os.path.isdir(path):
        problem = "it is a folder, not a file"
    elif not stream and not os.path.isdir(target):
        problem = f"{target} is a file"
    elif not os.access(target, os.W_OK):
        problem = f"{target} is not writable"
    else:
        return

    raise XlsrError(f"{option} '{path}' cannot be written: {problem}.")
