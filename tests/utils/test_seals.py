"""Torn and changed files are recognised by short hashes, and the cache makes them again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hf_xlsr.utils.hashing import cached, file_sha256, remembered_sha256
from hf_xlsr.utils.seals import SEAL, broken_seal, sampled_hash, seal

CONTENT = os.urandom(3_000_000)
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_XLSR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["large", "small", SEAL])
def test_damage_breaks_the_seal(name: str, damage: str, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(CONTENT)
    (tmp_path / "small").write_text("{}")
    assert broken_seal(tmp_path) is None, "a folder without a seal"
    seal(tmp_path)
    assert broken_seal(tmp_path) is None

    file = tmp_path / name
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    assert broken_seal(tmp_path) == name


def test_missing_file_breaks_the_seal(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    seal(tmp_path)
    (tmp_path / "file").unlink()
    assert broken_seal(tmp_path) == "file"


@pytest.mark.parametrize("name", ["file", SEAL])
@pytest.mark.parametrize("damage", DAMAGES)
def test_torn_cache_is_made_again(name: str, damage: str, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = []

    def make(folder: Path) -> None:
        (folder / "file").write_bytes(CONTENT)
        made.append(folder)

    folder = cached("address", make)
    assert cached("address", make) == folder
    assert len(made) == 1

    content = (folder / name).read_bytes()
    (folder / name).write_bytes(DAMAGES[damage](content))
    assert cached("address", make) == folder
    assert (folder / name).read_bytes() == content
    assert str(folder / name) in caplog.text


def change_in_place(file: Path, offset: int) -> None:
    """Changes one byte; size and time stay."""
    status = file.stat()
    with file.open("r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 1]))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.usefixtures("cache")
def test_change_in_place_is_noticed(tmp_path: Path) -> None:
    """Of a small file at once; of a large one in what is sampled, or when it is verified."""
    file = tmp_path / "small"
    file.write_bytes(CONTENT[:100_000])
    for offset in (0, 50_000, 99_999):
        before = remembered_sha256(file)
        change_in_place(file, offset)
        assert remembered_sha256(file) == file_sha256(file) != before

    large = tmp_path / "large"
    large.write_bytes(CONTENT)
    before = remembered_sha256(large)
    sample = sampled_hash(large)
    change_in_place(large, 100_000)  # between two blocks
    assert sampled_hash(large) == sample
    assert remembered_sha256(large) == before
    assert remembered_sha256(large, verify=True) == file_sha256(large) != before
    assert remembered_sha256(large) == file_sha256(large)


@pytest.mark.parametrize("damage", DAMAGES)
def test_torn_memory_of_a_hash(damage: str, cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("content")
    expected = remembered_sha256(file)
    (memory,) = (cache / "files").iterdir()
    memory.write_bytes(DAMAGES[damage](memory.read_bytes()))
    assert remembered_sha256(file) == expected
