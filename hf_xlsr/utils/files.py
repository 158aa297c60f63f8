"""Atomic writes, and checks of places to write to."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf_xlsr.utils.errors import XlsrError

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


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a pipe or a device, such as a terminal."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path to write to, which is moved to `path` at the end.

    A reader finds the old content or the new, even after a stop. Of a symbolic link, the target is replaced. A pipe or a
    device, such as `/dev/stdout`, receives the bytes at the end.
    """
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


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with atomic_write(path) as partial:
        partial.write_text(text, "utf-8")


def read_json(path: str | os.PathLike[str]) -> Any:
    return json.loads(Path(path).read_text("utf-8"))


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
