"""Folders that are made once, each under the address of what it is made from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock
from huggingface_hub.constants import HF_HOME

from hf_xlsr.utils.hashing import file_sha256


def cache_folder() -> Path:
    """The folder that `HF_XLSR_CACHE` names; by default `hf_xlsr` in that of Hugging Face (`HF_HOME`)."""
    return Path(os.environ.get("HF_XLSR_CACHE") or os.path.join(HF_HOME, "hf_xlsr")).expanduser()


def address_of(facts: Any) -> str:
    """A short hash of values that JSON can hold; of others, of their text."""
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:32]


def cached(address: str, make: Callable[[Path], None]) -> Path:
    """The folder of an `address_of` in the cache, made by the first call; others that need it wait.

    `make` fills a folder, which keeps what a killed call left there. Only a complete folder gets the address as its name.
    """
    folder = cache_folder() / address
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            partial = folder.with_name(f"{address}.partial")
            partial.mkdir(exist_ok=True)
            make(partial)
            partial.rename(folder)
    return folder


def content_hash(file: Path) -> str:
    """`file_sha256`, remembered in the cache for as long as path, size and time of the file stay the same."""
    status = file.stat()
    known = cache_folder() / "files" / address_of([file.resolve(), status.st_size, status.st_mtime_ns, status.st_ino])
    if not known.is_file():
        known.parent.mkdir(parents=True, exist_ok=True)
        partial = known.with_name(f"{known.name}.{os.getpid()}")  # several processes may hash one file at once
        partial.write_text(file_sha256(file), "utf-8")
        partial.replace(known)
    return known.read_text("utf-8")
