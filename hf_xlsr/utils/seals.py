"""Seals of finished folders: short hashes of their files, by which torn and changed ones are recognised later."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Container
from pathlib import Path

from hf_xlsr.utils.files import read_json, write_json

SEAL = ".sealed.json"
SAMPLES = 16  # blocks of a file that are read
BLOCK = 1 << 16  # bytes of a block


def sampled_hash(file: Path) -> str:
    """A hash of the size of a file and of blocks spread over its content: all of a file of up to 1 MiB."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    last = max(0, size - BLOCK)
    with file.open("rb") as stream:
        for number in range(SAMPLES):
            stream.seek(last * number // (SAMPLES - 1))
            digest.update(stream.read(BLOCK))
    return digest.hexdigest()[:32]


def hashes_of(folder: Path, without: Container[str] = ()) -> dict[str, str]:
    """The `sampled_hash` of each file of a folder and its subfolders but hidden ones, by its path in the folder."""
    hashes = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name not in without and not file.name.startswith("."):
            hashes[file.relative_to(folder).as_posix()] = sampled_hash(file)
    return hashes


def torn_file(folder: Path, hashes: dict[str, str]) -> str | None:
    """The first file that is not as its hash says, because it was cut, changed or removed; None if all are."""
    for name, expected in hashes.items():
        file = folder / name
        if not file.is_file() or sampled_hash(file) != expected:
            return name
    return None


def seal(folder: str | os.PathLike[str]) -> None:
    """Writes the hashes of a finished folder into it."""
    home = Path(folder)
    write_json(home / SEAL, hashes_of(home))


def broken_seal(folder: str | os.PathLike[str]) -> str | None:
    """The first file of a sealed folder that is torn, or the seal itself; None for a whole folder, or without a seal."""
    home = Path(folder)
    if not (home / SEAL).exists():
        return None
    try:
        return torn_file(home, dict(read_json(home / SEAL)))
    except (OSError, ValueError, TypeError):
        return SEAL
