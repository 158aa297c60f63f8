"""Atomic writes."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a pipe or a device, such as a terminal.

    Example:
        >>> is_stream(os.devnull), is_stream("no such file")
        (True, False)
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path to write to, which is moved to `path` at the end.

    A reader finds the old content or the new, even after a stop. Of a symbolic link, the target is replaced. A pipe or a
    device, such as `/dev/stdout`, receives the bytes at the end.

    Args:
        path: The file; its folder must exist.

    Raises:
        OSError: it cannot be written. The temporary file is removed, as it is after an error in the block.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "scores.txt"
        ...     with atomic_write(file) as partial:
        ...         _ = partial.write_text("0.93")
        ...         print(file.exists())
        ...     print(file.read_text(), len(os.listdir(folder)))
        False
        0.93 1
    """
    if is_stream(path):
        with tempfile.TemporaryDirectory() as folder:
            # Some writers seek, or take the format from the name.
            yield (partial := Path(folder) / Path(path).name)
            with partial.open("rb") as source, open(path, "wb") as stream:
                shutil.copyfileobj(source, stream)
        return
    file = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
    partial = file.with_name(file.name + ".partial")
    try:
        yield partial
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
