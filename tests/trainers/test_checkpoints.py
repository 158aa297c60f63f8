"""Which checkpoint a training resumes from: the newest that all processes wrote to the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hf_xlsr.trainers.checkpoints import check_resumable, last_whole_checkpoint
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.seals import seal

ONE = ("rng_state.pth",)
TWO = ("rng_state_0.pth", "rng_state_1.pth")
STATE = '{"global_step": 10}'


def write_checkpoint(folder: Path, step: int, random_states: tuple[str, ...], state: str = STATE) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir()
    (checkpoint / "trainer_state.json").write_text(state, "utf-8")
    for name in random_states:
        (checkpoint / name).touch()
    return checkpoint


@pytest.mark.parametrize(
    ("processes", "torn"),
    [
        (1, {"random_states": ONE, "state": STATE[:-1]}),
        (2, {"random_states": TWO[:1]}),
        (2, {"random_states": ONE}),
    ],
)
def test_an_incomplete_checkpoint_is_ignored(processes: int, torn: dict[str, Any], tmp_path: Path) -> None:
    random_states = ONE if processes == 1 else TWO
    for step in (2, 10):
        write_checkpoint(tmp_path, step, random_states)
    write_checkpoint(tmp_path, 11, **torn)
    (tmp_path / "checkpoint-best").mkdir()

    assert last_whole_checkpoint(tmp_path, processes) == tmp_path / "checkpoint-10"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_checkpoint_of_weights_alone_is_complete(processes: int, tmp_path: Path) -> None:
    """The state of the trainer is written last, and no random state is written for it."""
    write_checkpoint(tmp_path, 2, ONE if processes == 1 else TWO)
    newest = write_checkpoint(tmp_path, 10, ())

    assert last_whole_checkpoint(tmp_path, processes) == newest


@pytest.mark.parametrize("content", [b"weig", b"", bytes(7)], ids=["half", "empty", "zeros"])
def test_a_torn_checkpoint_falls_back(content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (2, 10):
        checkpoint = write_checkpoint(tmp_path, step, ONE)
        (checkpoint / "model.safetensors").write_bytes(b"weights")
        seal(checkpoint)
    torn = checkpoint / "model.safetensors"
    torn.write_bytes(content)

    assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-2"
    assert f"'{torn}' is torn" in caplog.text
    with pytest.raises(XlsrError, match=f"'{torn}' is torn"):
        check_resumable(str(checkpoint))
