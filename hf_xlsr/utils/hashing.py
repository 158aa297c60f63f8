"""SHA-256 of files, texts and arrays, and folders that are made once, each under the address of what it is made from."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from huggingface_hub.constants import HF_HOME

from hf_xlsr.utils.files import disk_errors, private_folder, write_text
from hf_xlsr.utils.seals import SEAL, broken_seal, sampled_hash, seal

logger = logging.getLogger(__name__)
_SHA256 = re.compile("[0-9a-f]{64}")


def update_from_file(digest: Any, path: Path) -> None:
    """Adds the content of a file to a digest of hashlib, in blocks."""
    with path.open("rb") as file:
        for block in iter(partial(file.read, 1 << 20), b""):
            digest.update(block)


def file_sha256(path: Path) -> str:
    """SHA-256 of the content of a file, in 64 hexadecimal digits."""
    digest = hashlib.sha256()
    update_from_file(digest, path)
    return digest.hexdigest()


def data_hash(texts: Iterable[str]) -> str:
    """SHA-256 of texts in order.

    Each text is hashed as its length in bytes (8 bytes, big-endian) followed by its UTF-8, so no two lists of texts
    collide by concatenation.

    Examples:
        >>> data_hash(["a", "b"])[:12], data_hash(["ab"])[:12]
        ('3c9d591045bc', '9caccc24b5d7')
    """
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.hexdigest()


def array_hash(array: np.ndarray) -> str:
    """SHA-256 of the type, shape and values of an array, which may be memory-mapped."""
    digest = hashlib.sha256(f"{array.dtype} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def cache_folder() -> Path:
    """The folder that `HF_XLSR_CACHE` names, of one user; by default `hf_xlsr` in that of Hugging Face (`HF_HOME`)."""
    return private_folder(Path(os.environ.get("HF_XLSR_CACHE") or os.path.join(HF_HOME, "hf_xlsr")).expanduser())


def address_of(facts: Any) -> str:
    """A short hash of values that JSON can hold; of others, of their text."""
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:32]


def address_of_rows(rows: Any) -> str:
    """The address of the content of a `datasets.Dataset`, which has no public name for it."""
    return str(rows._fingerprint)  # noqa: SLF001


def set_address(rows: Any, address: str) -> None:
    """Gives a `datasets.Dataset` the address of what it was made from, so that it is the same in every process."""
    rows._fingerprint = address  # noqa: SLF001


def cached(address: str, make: Callable[[Path], None]) -> Path:
    """The folder of an `address_of` in the cache, made by the first call; others that need it wait.

    `make` fills a folder, which keeps what a killed call left there. Only a complete folder gets the address as its name.
    One with a torn file is made again, with a warning.

    Raises:
        XlsrError: The disk is full.
    """
    folder = cache_folder() / address
    if _is_whole(folder):
        return folder
    with FileLock(f"{folder}.lock"), disk_errors(folder):
        if _is_whole(folder):
            return folder
        if folder.is_dir():
            logger.warning("'%s' is torn; it is made again.", folder / str(broken_seal(folder) or SEAL))
            shutil.rmtree(folder)
        unfinished = private_folder(folder.with_name(f"{address}.partial"))
        make(unfinished)
        seal(unfinished)
        unfinished.rename(folder)
    return folder


def _is_whole(folder: Path) -> bool:
    return (folder / SEAL).is_file() and broken_seal(folder) is None


def remembered_sha256(file: Path, *, verify: bool = False) -> str:
    """`file_sha256`, remembered in the cache for as long as path, size, time and a sample of the file stay the same.

    A change in place of a large file that keeps all of these is noticed with `verify`, which reads it again.
    """
    status = file.stat()
    facts = [file.resolve(), status.st_size, status.st_mtime_ns, status.st_ino, sampled_hash(file)]
    cache_file = remembered_file(facts)
    if cache_file.is_file() and not verify:
        remembered = cache_file.read_text("utf-8", "replace")
        if _SHA256.fullmatch(remembered):
            return remembered

    sha256 = file_sha256(file)
    write_text(cache_file, sha256)
    return sha256


def remembered_file(facts: Any) -> Path:
    """The file of the cache for one text about some facts."""
    return private_folder(cache_folder() / "files") / address_of(facts)
