"""Files are written whole or not at all; pipes and devices stay what they are."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from result_helpers import results

from hf_xlsr.evaluation.results import save_results
from hf_xlsr.utils.files import atomic_write, check_writable, is_stream

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
