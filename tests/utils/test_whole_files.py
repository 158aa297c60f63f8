"""Files are written whole or not at all; links, pipes and devices stay what they are."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_xlsr.cli import main
from hf_xlsr.encoders.debias import Debias
from hf_xlsr.evaluation.report import check_writable, save_results
from hf_xlsr.mining.outputs import check_place, write_pairs
from hf_xlsr.mining.work_folder import save_array
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import atomic_write, is_stream


def test_a_failure_leaves_the_old_content_and_nothing_beside(tmp_path: Path) -> None:
    (file := tmp_path / "file").write_text("old")
    with pytest.raises(ValueError, match="stop"), atomic_write(file) as partial:
        partial.write_text("ne")
        raise ValueError("stop")
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (target := tmp_path / "results" / "today.json").write_text("old")
    (link := tmp_path / "latest.json").symlink_to(target)
    save_results(link, {"accuracy": 0.5}, settings={})
    assert link.is_symlink() and json.loads(target.read_text())["metrics"] == {"accuracy": 0.5}
    assert os.listdir(tmp_path / "results") == ["today.json"]


@pytest.fixture
def pipe(tmp_path: Path) -> Any:
    """A named pipe, and a function that waits for what was written to it."""
    os.mkfifo(path := tmp_path / "pipe")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()), daemon=True)
    reader.start()

    def content() -> bytes:
        reader.join(timeout=30)
        assert is_stream(path) and os.listdir(tmp_path) == ["pipe"]
        return got[0]

    return path, content


def test_results_go_through_a_pipe(pipe: Any) -> None:
    path, content = pipe
    check_writable(path, "--output")
    save_results(path, {"accuracy": 0.5}, settings={})
    assert json.loads(content())["metrics"] == {"accuracy": 0.5}


def test_pairs_go_through_a_pipe(pipe: Any) -> None:
    path, content = pipe
    assert write_pairs(path, [{"score": 1.25, "source": "good day", "target": "bonjour"}], format="tsv") == 1
    assert content() == b"score\tsource\ttarget\n1.250000\tgood day\tbonjour\n"


def test_vectors_go_through_a_pipe(pipe: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path, content = pipe
    save_array(path, np.arange(6.0).reshape(2, 3))
    (file := tmp_path_factory.mktemp("read") / "read.npy").write_bytes(content())
    np.testing.assert_array_equal(np.load(file), np.arange(6.0).reshape(2, 3))


def test_a_device_takes_results_and_stays(tmp_path: Path) -> None:
    (link := tmp_path / "out").symlink_to(os.devnull)
    check_writable(link, "--output")
    save_results(link, {"accuracy": 0.5}, settings={})
    assert link.is_symlink() and is_stream(os.devnull)


def test_mining_wants_a_file_to_leave_its_stages_beside() -> None:
    with pytest.raises(
        XlsrError, match="is a pipe or a device, and mining leaves its stages beside its output; give a"
    ):
        check_place(os.devnull)


def test_a_pipe_that_is_locked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(path := tmp_path / "pipe")
    # In place of permissions, which do not hold for a superuser.
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != path)
    with pytest.raises(XlsrError, match="which is not writable; give another place"):
        check_writable(path, "--output")


def test_vectors_of_the_command_go_through_a_link(tmp_path: Path) -> None:
    folder = Debias(means={"fr": np.ones(6)}, counts={"fr": 9}, shares={"fr": 0.5}).save(tmp_path / "fit")
    np.save(tmp_path / "vectors.npy", np.random.default_rng(0).normal(size=(20, 6)))
    (link := tmp_path / "latest.npy").symlink_to(tmp_path / "clean.npy")
    command = ["debias", "apply", str(folder), "--vectors", str(tmp_path / "vectors.npy"), "--language", "fr"]
    assert main([*command, "--output", str(link)]) == 0
    assert link.is_symlink() and np.load(tmp_path / "clean.npy").shape == (20, 6)
