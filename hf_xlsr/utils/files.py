"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether something is there that bytes go through, such as a pipe or a terminal: no file, and no folder.

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
    """A place beside a file to write to, which is moved onto the file at the end.

    Whoever reads meanwhile, or after a stop, finds the old content or the new. A symbolic link stays: what it points to
    is replaced. A pipe or a device, such as `/dev/stdout`, stays too, and gets the bytes at the end.

    Args:
        path: Of the file; its folder has to be there.

    Raises:
        OSError: it cannot be written. Then, and where the block fails, what was written so far is removed.

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
            # Some writers go back in what they write, or know the format by the name.
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
