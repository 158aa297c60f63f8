"""Atomic writes of files and folders, private folders, full disks, and checks of places to write to."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf_xlsr.utils.errors import XlsrError

# How the names of folders begin in which files are written before they get their place.
LEFTOVER = ".hf-xlsr-partial-"
LONGEST_NAME = 200  # bytes; file systems take 255, and names get endings


def path_name(name: object, what: str) -> str:
    """A name that becomes a part of a path, such as a language; `what` says in errors what it names.

    Names come from files of others, and must not lead out of the folder that is written to.

    Raises:
        XlsrError: It is empty, too long, hidden, or holds a separator of paths or a control character.

    Examples:
        >>> path_name("zh-Hant", "language")
        'zh-Hant'
        >>> path_name("../x", "language")
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: The language '../x' cannot be a part of a path. Use letters, digits, - and _.
    """
    text = str(name)
    is_part = text.isprintable() and not text.startswith((".", "~", " ")) and not set(text) & set("/\\:")
    if not text or not is_part or len(text.encode()) > LONGEST_NAME:
        shown = text[:60] + "..." * (len(text) > 60)
        raise XlsrError(f"The {what} {shown!r} cannot be a part of a path. Use letters, digits, - and _.")
    return text


def inside(home: str | os.PathLike[str], *names: str) -> str:
    """The path of a file or folder as files in `home` name it, relative to `home`; empty for `home` itself."""
    path = Path(*names)
    if path.is_absolute() or ".." in path.parts or "\0" in str(path):
        raise XlsrError(f"The files of '{home}' must be inside of it, got '{path}'.")
    return "" if path == Path() else path.as_posix()


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


class FullDiskError(XlsrError):
    """A file that cannot be written because of a full disk. What else would be written there fails as well."""


@contextmanager
def disk_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns a full disk into an error that names the path."""
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        raise FullDiskError(
            f"'{os.fspath(path)}' cannot be written: the disk is full, or a limit on file size is reached. Make room and "
            "run the same command again."
        ) from error


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a pipe or a device, such as a terminal."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@contextmanager
def place_beside(path: Path) -> Iterator[Path]:
    """A path with the name of `path` in a new private folder, which is in the same folder as `path`.

    The folder has a random name and mode 0700.

    What is there at the end is removed: move it before.
    """
    with tempfile.TemporaryDirectory(prefix=LEFTOVER, dir=path.parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder) / path.name


def remove_leftovers(*folders: Path) -> None:
    """Removes what killed processes left of unfinished writes in folders that no other process writes to."""
    for folder in folders:
        for leftover in folder.glob(f"{LEFTOVER}*"):
            shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path to write to, which is moved to `path` at the end.

    A reader finds the old content or the new, even after a stop. A symbolic link is replaced; what it points to stays. A
    pipe or a device, such as `/dev/stdout`, receives the bytes at the end. Missing folders are made.

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

    file = Path(path)
    if file.is_symlink() and file.is_relative_to("/dev"):  # of the system: /dev/stdout is a link to a file
        file = file.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    with place_beside(file) as partial:
        yield partial
        partial.replace(file)


def private_folder(path: str | os.PathLike[str]) -> Path:
    """A folder whose content is believed later: work that resumes, stored embeddings, prepared data.

    A missing one is made for this user alone (mode 0700).

    Raises:
        XlsrError: Others could have written what is in it: it, or a link in its place, belongs to another user, or its
            group or everyone may write there.
    """
    folder = Path(path)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
        return folder
    except FileExistsError:
        if not folder.is_dir():
            raise XlsrError(f"'{folder}' must be a folder. Choose another place.") from None

    if hasattr(os, "getuid"):
        status = folder.stat()
        owners = {folder.lstat().st_uid, status.st_uid}
        if owners - {os.getuid(), 0}:
            raise XlsrError(f"Folder '{folder}' belongs to another user, who could change it. Use one of your own.")
        if status.st_mode & 0o022:
            raise XlsrError(
                f"Others may write to folder '{folder}', and change what is read from it. Run `chmod go-w` on it, or use "
                "another folder."
            )
    return folder


@contextmanager
def atomic_folder(path: str | os.PathLike[str], *, merge: bool = False) -> Iterator[Path]:
    """A temporary folder that is renamed to `path` at the end, or removed after an error.

    Args:
        path: Missing or an empty folder, also at the end: of two calls at once, one wins.
        merge: Instead of that, move each file into a folder that holds others, which stay.

    Raises:
        XlsrError: The folder has been filled meanwhile, or the disk is full.
    """
    folder = Path(os.path.abspath(path))
    with disk_errors(path):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with place_beside(folder) as partial:
            partial.mkdir()
            yield partial
            try:
                partial.rename(folder)
            except OSError as error:
                if merge and folder.is_dir():
                    _move_files(partial, folder)
                elif error.errno in OCCUPIED:
                    raise XlsrError(f"'{path}' was filled by another command. Choose another folder.") from error
                else:
                    raise


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


def refuse_overwriting(
    outputs: Iterable[str | os.PathLike[str]],
    inputs: Iterable[str | os.PathLike[str]],
    option: str,
) -> None:
    """Raises if something that will be written is a file or folder that is read, whatever links or names lead to it."""
    existing_inputs = list(filter(os.path.exists, inputs))
    for output in outputs:
        if not os.path.exists(output) or is_stream(output):
            continue
        for path in existing_inputs:
            if os.path.samefile(output, path):
                raise XlsrError(f"{option} '{output}' would overwrite '{path}', which is read. Choose another place.")
