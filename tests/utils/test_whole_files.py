"""Files are written whole or not at all; pipes and devices stay what they are."""

from __future__ import annotations

import json
import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from result_helpers import results
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from hf_xlsr.evaluation.results import save_results
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import atomic_folder, atomic_write, check_writable, is_stream

METRICS = results({"a-xsim/en-fr/test/error": 0.5})


def test_failure_keeps_the_old_content(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    with pytest.raises(ValueError, match="stop"), atomic_write(file) as partial:
        partial.write_text("ne")
        raise ValueError("stop")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.fixture
def pipe(tmp_path: Path) -> Any:
    """A named pipe, and a function that waits for what was written to it."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    contents: list[bytes] = []
    reader = threading.Thread(target=lambda: contents.append(path.read_bytes()), daemon=True)
    reader.start()

    def content() -> bytes:
        reader.join(timeout=30)
        assert is_stream(path)
        assert os.listdir(tmp_path) == ["pipe"]
        return contents[0]

    return path, content


def test_results_go_through_a_pipe(pipe: Any) -> None:
    path, content = pipe
    check_writable(path, "--output")
    save_results(path, METRICS, settings={})
    assert json.loads(content())["metrics"] == METRICS


def test_folder_is_there_when_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "export"
    with pytest.raises(KeyboardInterrupt), atomic_folder(folder) as partial:
        (partial / "half").touch()
        raise KeyboardInterrupt
    assert os.listdir(folder.parent) == []

    with atomic_folder(folder) as partial:
        (partial / "file").touch()
        assert not folder.exists()
    assert os.listdir(folder) == ["file"]
    assert os.listdir(folder.parent) == ["export"]
    usual = tmp_path / "usual"
    usual.mkdir()
    assert folder.stat().st_mode == usual.stat().st_mode


def test_of_two_folders_at_once_one_wins(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()  # an empty one may be there
    with pytest.raises(XlsrError, match=f"'{folder}' was filled"), atomic_folder(folder) as second:
        (second / "only of the second").touch()
        with atomic_folder(folder) as first:
            (first / "file").write_text("first")
    assert os.listdir(folder) == ["file"]
    assert os.listdir(tmp_path) == ["export"]


def test_merged_folder_keeps_other_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_text("old")
    (tmp_path / "mine").write_text("stays")
    with atomic_folder(tmp_path, merge=True) as partial:
        (partial / "deep").mkdir()
        (partial / "deep" / "file").write_text("new")
    assert (tmp_path / "deep" / "file").read_text() == "new"
    assert (tmp_path / "mine").read_text() == "stays"


ARRAY = np.arange(10_000.0)
WRITERS: dict[str, Callable[[Path], Any]] = {
    "Python": lambda path: path.write_bytes(ARRAY.tobytes()),
    "numpy": lambda path: ARRAY.tofile(path),
    "safetensors": lambda path: save_file({"a": ARRAY}, path),
    "torch": lambda path: torch.save(torch.from_numpy(ARRAY), path),
    "Parquet": lambda path: pq.write_table(pa.table({"a": ARRAY}), path),
    "tokenizers": lambda path: Tokenizer(WordLevel({str(n): n for n in range(9999)}, "0")).save(str(path)),
}


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file grows beyond 1,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("library", WRITERS)
def test_full_disk_is_named(library: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with (
        pytest.raises(XlsrError, match=f"'{file}' cannot be written: the disk is full"),
        atomic_write(file) as partial,
    ):
        WRITERS[library](partial)
    folder = tmp_path / "folder"
    with (
        pytest.raises(XlsrError, match=f"'{folder}' cannot be written: the disk is full"),
        atomic_folder(folder) as partial,
    ):
        WRITERS[library](partial / "file")
    assert os.listdir(tmp_path) == []
